//! Which module may use what: data flows one way (docs/architecture.md).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

const CARGO_TOML: &str = include_str!("../Cargo.toml");

/// What the files of a module may name.
struct Module {
    /// A path below `src/` without its ending; a folder of that name belongs to it.
    path: &'static str,
    /// Modules of this crate.
    own: &'static [&'static str],
    /// Dependencies.
    crates: &'static [&'static str],
}

/// The table. The longest path that fits a file counts.
const MODULES: [Module; 20] = [
    // Start and stop; the library does the rest.
    Module { path: "main", own: &["cli"], crates: &[] },
    // The engine's options only, to fill them from settings.
    Module {
        path: "cli",
        own: &["bench", "cli", "engine", "gateway", "proto", "sdk", "server"],
        crates: &[
            "clap",
            "indicatif",
            "prost_types",
            "serde",
            "serde_json",
            "tempfile",
            "tokio",
            "tokio_util",
            "toml",
            "tracing",
            "tracing_subscriber",
        ],
    },
    Module { path: "lib", own: &[], crates: &[] },
    Module { path: "proto", own: &[], crates: &["tonic"] },
    // Pure: no clock, no randomness of its own, nothing asynchronous, no database, no network.
    Module {
        path: "domain",
        own: &["domain"],
        crates: &["serde", "serde_json", "sha2", "thiserror", "uuid"],
    },
    Module {
        path: "engine",
        own: &["domain", "engine", "metric", "store"],
        crates: &["futures_util", "metrics", "thiserror", "tokio", "tokio_util", "tracing", "uuid"],
    },
    // What a node measures about itself.
    Module { path: "metric", own: &[], crates: &["metrics"] },
    // The only home of SQL.
    Module {
        path: "store",
        own: &["domain", "metric", "store"],
        crates: &["sea_orm", "serde_json", "sqlx", "thiserror", "tokio", "tokio_util", "tracing", "uuid"],
    },
    // HTTP before the services of `rpc`, and their form of errors.
    Module {
        path: "gateway",
        own: &["gateway", "proto", "rpc"],
        crates: &[
            "futures_util",
            "http_body_util",
            "percent_encoding",
            "prost",
            "prost_reflect",
            "prost_types",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "tonic",
            "tonic_health",
            "tonic_types",
            "tracing",
            "uuid",
        ],
    },
    Module {
        path: "rpc",
        own: &["domain", "engine", "gateway", "proto", "rpc", "session", "store"],
        crates: &[
            "futures_util",
            "prost",
            "prost_types",
            "thiserror",
            "tokio",
            "tokio_rustls",
            "tokio_util",
            "tonic",
            "tonic_health",
            "tonic_reflection",
            "tonic_types",
            "tracing",
            "uuid",
        ],
    },
    Module {
        path: "session",
        own: &["domain", "engine", "proto", "rpc", "session"],
        crates: &["futures_util", "prost", "tokio", "tokio_util", "tonic_types", "tracing", "uuid"],
    },
    // Where a session meets the transport: a stream ends with a status, and what it yields is results with one. The
    // protocol and its frames know no transport.
    Module { path: "session/mod", own: SESSION, crates: &["futures_util", "tokio_util", "tonic"] },
    Module {
        path: "session/connection",
        own: SESSION,
        crates: &["futures_util", "tokio", "tonic", "tonic_types", "tracing", "uuid"],
    },
    Module { path: "session/outbox", own: SESSION, crates: &["futures_util", "prost", "tokio", "tonic"] },
    // A dispatch carries where the task waited, which the store made.
    Module {
        path: "session/protocol/tests",
        own: &["domain", "engine", "proto", "rpc", "session", "store"],
        crates: &["tokio", "tonic_types", "uuid"],
    },
    // Builds alone, without the server.
    Module {
        path: "sdk",
        own: &["proto", "sdk"],
        crates: &[
            "backon",
            "futures_util",
            "prost",
            "prost_types",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "tokio_stream",
            "tokio_util",
            "tonic",
            "tonic_types",
            "tracing",
            "uuid",
        ],
    },
    // Measures the server from outside, and the database beside it: it has SQL and connections of its own.
    Module {
        path: "bench",
        own: &["bench", "metric", "proto", "server", "store"],
        crates: &[
            "hdrhistogram",
            "metrics_exporter_prometheus",
            "sea_orm",
            "serde",
            "serde_json",
            "sqlx",
            "tempfile",
            "thiserror",
            "tokio",
            "tokio_stream",
            "tokio_util",
            "tonic",
            "tracing",
            "uuid",
        ],
    },
    // Puts all together.
    Module {
        path: "server",
        own: &["domain", "engine", "rpc", "server", "store"],
        crates: &["tempfile", "thiserror", "tokio", "tokio_rustls", "tokio_util", "tracing", "uuid"],
    },
    // The server as its users see it, behind something that misbehaves.
    Module {
        path: "testing",
        own: &["proto", "sdk", "server", "testing"],
        crates: &["futures_util", "tokio", "tokio_stream", "tokio_util", "tonic", "tracing"],
    },
    // Of the server only these may know the schema's own crate; entities it has none.
    Module { path: "server/schema", own: &["server", "store"], crates: &["migration", "tracing"] },
];

const SESSION: &[&str] = &["domain", "engine", "proto", "rpc", "session"];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    files
}

/// The file's path below its root, without its ending.
fn name_of(file: &Path, root: &Path) -> String {
    let relative = file.strip_prefix(root).expect("below the root").with_extension("");
    relative.to_str().expect("UTF-8").replace('\\', "/")
}

/// The text without comments. Good enough for formatted code: `//` within a string ends a line early, and no more.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All paths of a use tree such as `a::{b, c::{d, e}}`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or(tree).trim().to_owned()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut branch, mut branches) = (0, String::new(), Vec::new());
    for c in inner.chars() {
        match c {
            ',' if depth == 0 => branches.push(std::mem::take(&mut branch)),
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if c != ',' || depth > 0 {
            branch.push(c);
        }
    }
    branches.push(branch);
    let branches = branches.iter().map(|b| b.trim()).filter(|b| !b.is_empty());
    branches.flat_map(expand).map(|path| format!("{}{path}", prefix.trim())).collect()
}

/// Every path that the code names: of its `use` lines, and written out in place.
fn paths(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for statement in code.split(';') {
        let Some((_, tree)) = statement.rsplit_once("use ").filter(|(before, _)| !before.ends_with(is_word))
        else {
            continue;
        };
        found.extend(expand(&tree.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    for (at, _) in code.match_indices("::") {
        let start = code[..at].rfind(|c: char| !is_word(c) && c != ':').map_or(0, |i| i + 1);
        let end = code[at + 2..].find(|c: char| !is_word(c)).map_or(code.len(), |i| at + 2 + i);
        found.insert(code[start..end].to_owned());
    }
    found
}

fn dependencies() -> BTreeSet<String> {
    let (_, rest) = CARGO_TOML.split_once("[dependencies]").expect("dependencies");
    let names = rest.lines().take_while(|line| !line.starts_with('[')).filter_map(|l| l.split_once(" = "));
    names.map(|(name, _)| name.trim().replace('-', "_")).collect()
}

/// What a path names: a module of this crate, or a dependency.
fn breaks(module: &Module, path: &str, dependencies: &BTreeSet<String>) -> bool {
    let mut segments = path.trim_start_matches("::").split("::");
    match (segments.next(), segments.next()) {
        (Some("crate" | "orbit"), Some(own)) if own.starts_with(char::is_lowercase) => {
            !module.own.contains(&own)
        }
        (Some(first), _) => dependencies.contains(first) && !module.crates.contains(&first),
        (None, _) => false,
    }
}

fn module_of(file: &str) -> &'static Module {
    let fits = |module: &&Module| {
        file.strip_prefix(module.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let fitting = MODULES.iter().filter(fits).max_by_key(|module| module.path.len());
    fitting.unwrap_or_else(|| panic!("src/{file}.rs belongs to no module of the table"))
}

#[test]
fn modules_use_only_what_the_table_lets_them() {
    let dependencies = dependencies();
    let mut broken = Vec::new();
    for file in rust_files(&src()) {
        let name = name_of(&file, &src());
        let text = fs::read_to_string(&file).expect("a text");
        let module = module_of(&name);
        for path in paths(&code(&text)) {
            if breaks(module, &path, &dependencies) {
                broken.push(format!("src/{name}.rs uses {path}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Only the store speaks SQL, and what is measured beside it; what decides is in the domain.
#[test]
fn sql_stands_in_the_store_and_nowhere_else() {
    let mut broken = Vec::new();
    for file in rust_files(&src()) {
        let name = name_of(&file, &src());
        let text = code(&fs::read_to_string(&file).expect("a text"));
        let words = ["\"SELECT ", "\"INSERT INTO ", "\"UPDATE ", "\"DELETE FROM ", "FOR UPDATE"];
        if !name.starts_with("store/")
            && !name.starts_with("bench/")
            && words.iter().any(|word| text.contains(word))
        {
            broken.push(name);
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn migrations_know_nothing_of_the_program_that_uses_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("migration/src");
    for file in rust_files(&root) {
        let text = code(&fs::read_to_string(&file).expect("a text"));
        let foreign: Vec<_> = paths(&text)
            .into_iter()
            .filter(|path| path.split("::").any(|segment| segment == "orbit" || segment.contains("entit")))
            .collect();
        assert!(foreign.is_empty() && !text.contains("DeriveEntityModel"), "{}: {foreign:?}", file.display());
    }
}

#[test]
fn the_scan_finds_what_is_there() {
    let text = "use std::fmt;\nuse crate::{engine::{Engine, Seat as S}, store::Database};\npub(crate) use tonic::Status;\n\
                fn f() -> sea_orm::DbErr { crate::rpc::g() } // tokio::spawn";
    let found = paths(&code(text));
    for path in ["crate::engine::Engine", "crate::engine::Seat", "crate::store::Database", "tonic::Status"] {
        assert!(found.contains(path), "{found:?}");
    }
    let dependencies = dependencies();
    let domain = module_of("domain/task");
    let broken: Vec<_> = found.iter().filter(|path| breaks(domain, path, &dependencies)).collect();
    assert_eq!(broken.len(), 7, "{broken:?}");
    assert!(breaks(module_of("session/protocol"), "tonic::Status", &dependencies));
    assert!(!breaks(module_of("session/outbox"), "tonic::Status", &dependencies));
    assert!(!found.iter().any(|path| path.contains("tokio")));
}
