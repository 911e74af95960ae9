//! The address of a database, which may hold a password.

use std::fmt;

/// The address of a database. Neither `Debug` nor `Display` shows its user, password or parameters.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// Wraps an address. Whether it is a good one turns out when the database is opened.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole address, password included: for opening the database only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A password may hold any character, unescaped too, so nothing left of the last `@` is trusted.
        let scheme = self.0.split_once(':').map(|(scheme, _)| scheme);
        match scheme {
            Some("sqlite") => f.write_str(without_parameters(&self.0)),
            Some("mysql") => {
                let address = self.0.rsplit_once('@').map(|(_, address)| address);
                let address = address.or_else(|| self.0.strip_prefix("mysql://")).unwrap_or("…");
                write!(f, "mysql://{}", without_parameters(address))
            }
            _ => f.write_str("…"),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

fn without_parameters(address: &str) -> &str {
    address.split_once('?').map_or(address, |(address, _)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_user_password_and_parameters_is_shown() {
        for url in [
            "mysql://root:hunter2@db.example:3306/orbit",
            "mysql://root:hunter2@db.example:3306/orbit?ssl-key=hunter2",
            "mysql://root:p/hunter2@db.example:3306/orbit",
            "mysql://root:p?hunter2@db.example:3306/orbit",
            "mysql://root:p@hunter2@db.example:3306/orbit",
            "mysql:root:hunter2@db.example:3306/orbit",
            "mysql:hunter2",
            "root:hunter2@db.example",
            "postgres://root:hunter2@db.example/orbit",
            "hunter2",
        ] {
            let url = DatabaseUrl::new(url);
            assert!(!format!("{url} {url:?}").contains("hunter2"), "{}", url.expose());
        }
    }

    #[test]
    fn what_tells_the_database_is_shown() {
        for (url, shown) in [
            ("mysql://root:x@db.example:3306/orbit?a=b", "mysql://db.example:3306/orbit"),
            ("mysql://127.0.0.1/orbit", "mysql://127.0.0.1/orbit"),
            ("sqlite:./orbit.db", "sqlite:./orbit.db"),
            ("sqlite:///var/lib/orbit.db?mode=rwc", "sqlite:///var/lib/orbit.db"),
        ] {
            assert_eq!(DatabaseUrl::new(url).to_string(), shown);
        }
    }
}
