//! `docs/promises.md` names tests that exist, for every promise.

use std::{fs, path::Path};

fn sources(dir: &Path, all: &mut String) {
    for entry in fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, all);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            all.push_str(&fs::read_to_string(&entry).expect("a source file"));
        }
    }
}

#[test]
fn every_promise_has_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = String::new();
    for dir in ["src", "tests", "migration/tests"] {
        sources(&root.join(dir), &mut all);
    }
    let page = fs::read_to_string(root.join("docs/promises.md")).expect("the page");
    for promise in 1..=26 {
        let start = format!("| S{promise} | ");
        let row = page.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("S{promise} is missing"));
        let column = row.rsplit(" | ").next().expect("a column of tests");
        assert!(column.contains('`'), "S{promise} has no test");
    }
    let names = page.split('`').skip(1).step_by(2).filter(|n| !n.contains(['/', ' ', '.']) && n.len() > 12);
    for name in names {
        assert!(all.contains(&format!("fn {name}(")), "{name} is no test");
    }
}
