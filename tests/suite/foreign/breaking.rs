//! `buf breaking`, with the rules of `proto/buf.yaml`, as tests/breaking.sh uses it: it does find what breaks.

use std::{fs, path::Path};

use tempfile::tempdir;

use super::{root, tool};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// Whether the contract may come after one that differs from it so.
fn may_follow(change: impl Fn(&str) -> String) -> bool {
    let folder = tempdir().expect("a folder");
    copy(&root().join("proto"), folder.path());
    let file = folder.path().join("orbit/v1/task.proto");
    let text = fs::read_to_string(&file).expect("a text");
    fs::write(&file, change(&text)).expect("written");
    let mut buf = tool("buf");
    buf.args(["breaking", "proto", "--against"]).arg(folder.path()).current_dir(root());
    buf.output().expect("it runs").status.success()
}

#[test]
fn a_contract_that_takes_something_away_is_refused_and_one_that_adds_is_not() {
    assert!(may_follow(str::to_owned));
    let without = |line: &'static str| {
        move |text: &str| {
            assert!(text.contains(line), "{line}");
            text.replace(line, "")
        }
    };
    assert!(may_follow(without("  uint32 granted_attempts = 26;\n")), "a field was added since");
    let other = |text: &str| text.replace("uint32 granted_attempts = 26;", "string granted_attempts = 26;");
    assert!(!may_follow(other), "a field has another type");
    let more = |text: &str| {
        text.replace("uint32 granted_attempts = 26;", "uint32 granted_attempts = 26;\nuint32 more = 999;")
    };
    assert!(!may_follow(more), "a field is gone");
}
