use clap::Parser;

use super::*;

const MANUAL: &str = include_str!("../../../docs/configuration.md");

#[derive(Parser)]
struct Serve {
    #[command(flatten)]
    args: ServeArgs,
}

fn serve(args: &[&str]) -> ServeArgs {
    Serve::try_parse_from(std::iter::once(&"serve").chain(args))
        .map_or_else(|error| panic!("{error}"), |serve| serve.args)
}

fn resolve(args: &[&str], file: &str) -> Result<Settings, String> {
    let path = Path::new("orbit.toml");
    let file = ConfigFile::parse(file, path).map_err(|failure| failure.to_string())?;
    merge(serve(args), file, Some(path)).map_err(|failure| failure.to_string())
}

fn example() -> &'static str {
    let (_, example) = MANUAL.split_once("```toml\n").unwrap();
    example.split_once("```").unwrap().0
}

#[test]
fn a_flag_outranks_the_file_and_the_file_the_default() {
    let file = "database_url = 'sqlite:file.db'\nlease_ms = 2000\nmigrate = true\nlisten = '[::1]:7171'";
    let settings = resolve(&["--lease-ms", "3000"], file).unwrap();
    assert_eq!(settings.server.database_url.expose(), "sqlite:file.db");
    assert_eq!(settings.server.engine.lease, Duration::from_secs(3));
    assert_eq!(settings.server.listen.to_string(), "[::1]:7171");
    assert!(settings.server.migrate);
    assert_eq!(settings.server.engine.start_window, Duration::from_secs(15));

    let settings = resolve(&["--migrate=false", "--database-url", "sqlite:flag.db"], file).unwrap();
    assert_eq!(settings.server.database_url.expose(), "sqlite:flag.db");
    assert!(!settings.server.migrate);
}

#[test]
fn finished_tasks_are_kept_as_long_as_is_said() {
    let file = "database_url = 'sqlite:x'\nkeep_finished = '12h'";
    let kept = |args: &[&str]| resolve(args, file).map(|settings| settings.server.engine.keep_finished);
    assert_eq!(kept(&[]), Ok(Some(Duration::from_hours(12))));
    assert_eq!(kept(&["--keep-finished", "30d"]), Ok(Some(Duration::from_hours(720))));
    assert_eq!(kept(&["--keep-finished", "forever"]), Ok(None));
    let error = kept(&["--keep-finished", "30"]).unwrap_err();
    assert!(error.starts_with("--keep-finished (or ORBIT_KEEP_FINISHED) must be"), "{error}");
    let error = resolve(&[], "database_url = 'sqlite:x'\nkeep_finished = '5s'").err().unwrap();
    assert!(error.contains("orbit.toml: `keep_finished` must be"), "{error}");
}

#[test]
fn tls_needs_a_certificate_and_its_key() {
    let file = "database_url = 'sqlite:x'\ntls_cert = 'a.crt'\n";
    let both = format!("{file}tls_key = 'a.key'");
    let tls = |args: &[&str], file: &str| {
        let tls = resolve(args, file)?.server.tls.expect("both are given");
        Ok::<_, String>((tls.cert.display().to_string(), tls.key.display().to_string()))
    };
    assert_eq!(tls(&[], &both), Ok(("a.crt".to_owned(), "a.key".to_owned())));
    assert_eq!(tls(&["--tls-key", "b.key"], &both), Ok(("a.crt".to_owned(), "b.key".to_owned())));
    assert_eq!(
        tls(&[], file).err().as_deref(),
        Some(
            "TLS needs a certificate and its key, and only tls_cert is given: add --tls-key FILE (or ORBIT_TLS_KEY, or \
             `tls_key` in the configuration file)"
        )
    );
    assert!(
        tls(&["--tls-key", "b.key"], "database_url = 'sqlite:x'").err().unwrap().contains("--tls-cert FILE")
    );
    assert!(resolve(&[], "database_url = 'sqlite:x'").unwrap().server.tls.is_none());
}

#[test]
fn a_boolean_flag_alone_means_yes() {
    assert_eq!(serve(&["--migrate", "--insecure-no-auth"]).migrate, Some(true));
    assert_eq!(serve(&["--insecure-no-auth", "--migrate"]).listen.insecure_no_auth, Some(true));
}

#[test]
fn the_manuals_example_is_the_default() {
    let from_example = resolve(&["--node-id", "n"], example()).unwrap();
    let defaults = resolve(&["--node-id", "n", "--database-url", "sqlite:orbit.db"], "").unwrap();
    assert_eq!(format!("{:?}", from_example.server), format!("{:?}", defaults.server));
}

#[test]
fn every_key_is_in_the_manual_with_its_flag_and_variable() {
    // serde names all known keys when it meets an unknown one.
    let error = resolve(&[], "no_such_key = 1").err().unwrap();
    let keys: Vec<_> = error.split('`').skip(3).step_by(2).collect();
    assert_eq!(keys.len(), 17, "{error}");
    let mut help = Vec::new();
    let mut command = <Serve as clap::CommandFactory>::command();
    command.write_long_help(&mut help).unwrap();
    let help = String::from_utf8(help).unwrap();
    for key in keys {
        assert!(MANUAL.contains(&format!("| `{key}` |")), "{key}");
        assert!(help.contains(&format!("--{}", key.replace('_', "-"))), "{key}");
        assert!(help.contains(&format!("[env: ORBIT_{}]", key.to_ascii_uppercase())), "{key}");
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_name_and_place() {
    let error = resolve(&[], "database_url = 'sqlite:x'\nlease = 5").err().unwrap();
    assert!(error.starts_with("the configuration file orbit.toml, line 2: unknown key `lease`"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn a_wrong_value_is_refused_with_its_place() {
    let url = "database_url = 'sqlite:x'\n";
    for (args, file, expected) in [
        (&["--lease-ms", "5"][..], "", "--lease-ms (or ORBIT_LEASE_MS) is 5; it must be 1000 to 3600000"),
        (
            &[],
            "lease_ms = 5",
            "the configuration file orbit.toml: `lease_ms` is 5; it must be 1000 to 3600000",
        ),
        (
            &[],
            "poll_interval_ms = 0",
            "the configuration file orbit.toml: `poll_interval_ms` is 0; it must be 10 to 60000",
        ),
        (
            &[],
            "node_id = 'a b'",
            "the configuration file orbit.toml: `node_id` must be 1 to 64 visible ASCII characters",
        ),
        (
            &[],
            "listen = 'localhost'",
            "the configuration file orbit.toml: `listen` is none; an address is IP:PORT, such as 127.0.0.1:7070 or [::1]:7070",
        ),
    ] {
        assert_eq!(resolve(args, &format!("{url}{file}")).err().as_deref(), Some(expected));
    }
}

#[test]
fn a_password_in_a_broken_file_is_not_shown() {
    for file in [
        "database_url = 'mysql://root:hunter2@db/orbit",
        "database_url = 'mysql://root:hunter2@db/orbit' 5",
        "database_url = mysql://root:hunter2@db/orbit",
        "databaseurl = 'mysql://root:hunter2@db/orbit'",
        "database_url = ['mysql://root:hunter2@db/orbit']",
        "lease_ms = 'mysql://root:hunter2@db/orbit'",
        "listen = 'mysql://root:hunter2@db/orbit'",
    ] {
        let error = resolve(&[], file).err().unwrap();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn settings_in_debug_output_hide_the_password() {
    let settings = resolve(&["--database-url", "mysql://root:hunter2@db/orbit"], "").unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn without_a_database_the_answer_says_how_to_give_one() {
    let error = resolve(&[], "").err().unwrap();
    assert!(error.contains("--database-url") && error.contains("ORBIT_DATABASE_URL"), "{error}");
}
