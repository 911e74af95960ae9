//! MySQL users with passwords.

use orbit::store::{Database, DatabaseOptions, OpenError};
use uuid::Uuid;

use crate::support::{database::TestDatabase, on_mysql};

on_mysql! {
    async fn a_password_lets_in_and_a_wrong_one_is_told() {
        let database = TestDatabase::mysql().await;
        let user = format!("u{}", &Uuid::new_v4().simple().to_string()[..12]);
        database.sql(&format!("CREATE USER '{user}'@'%' IDENTIFIED BY 's3cret'")).await;
        database.sql(&format!("GRANT ALL ON *.* TO '{user}'@'%'")).await;
        let place = database.url.rsplit_once('@').map(|(_, place)| place.to_owned()).expect("a user in the URL");
        let open = async |password: &str| {
            Database::open(&format!("mysql://{user}:{password}@{place}"), DatabaseOptions::default()).await
        };
        let refused = open("wrong").await.err();
        assert!(matches!(refused, Some(OpenError::AccessDenied(_))), "{refused:?}");
        let opened = open("s3cret").await.expect("let in");
        opened.close().await;
        database.sql(&format!("DROP USER '{user}'@'%'")).await;
        database.drop().await;
    }
}
