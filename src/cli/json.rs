//! JSON for scripts.
//!
//! Written by hand because payloads and results are kept byte for byte, with the blanks around them too: serde_json
//! re-writes numbers and duplicate keys, and its raw values trim.

use std::io::IsTerminal as _;

use super::text::harmless_json;

/// A JSON value to print.
#[derive(Debug, Clone)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(u64),
    Text(String),
    /// A JSON text, printed as it is.
    Raw(String),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Json {
    /// A text, or null if it is empty: the contract writes "none" as an empty text.
    pub(crate) fn text_or_null(text: &str) -> Self {
        if text.is_empty() { Self::Null } else { Self::Text(text.to_owned()) }
    }

    /// A JSON text as it is, or null if it is empty.
    pub(crate) fn raw_or_null(text: &str) -> Self {
        if text.is_empty() { Self::Null } else { Self::Raw(text.to_owned()) }
    }

    /// The text, indented, with a line break at its end. On a terminal nothing in it commands that.
    pub(crate) fn print(&self) -> String {
        self.finished(Some(0))
    }

    /// The text on one line, with a line break at its end.
    pub(crate) fn line(&self) -> String {
        self.finished(None)
    }

    fn finished(&self, depth: Option<usize>) -> String {
        let mut out = String::new();
        self.write(&mut out, depth);
        out.push('\n');
        if std::io::stdout().is_terminal() { harmless_json(&out) } else { out }
    }

    /// `depth` is how far to indent; none for one line.
    fn write(&self, out: &mut String, depth: Option<usize>) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(value) => out.push_str(&value.to_string()),
            Self::Text(text) => out.push_str(&quoted(text)),
            // Line breaks stand between its tokens only.
            Self::Raw(text) if depth.is_none() => out.push_str(&text.replace(['\n', '\r'], " ")),
            Self::Raw(text) => out.push_str(text),
            Self::List(items) => write_block(out, depth, ('[', ']'), items, |out, item, depth| {
                item.write(out, depth);
            }),
            Self::Object(fields) => {
                write_block(out, depth, ('{', '}'), fields, |out, (name, value), depth| {
                    out.push_str(&quoted(name));
                    out.push_str(": ");
                    value.write(out, depth);
                });
            }
        }
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u32> for Json {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

fn write_block<T>(
    out: &mut String,
    depth: Option<usize>,
    (open, close): (char, char),
    items: &[T],
    write: impl Fn(&mut String, &T, Option<usize>),
) {
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
            if depth.is_none() {
                out.push(' ');
            }
        }
        new_line(out, depth.map(|depth| depth + 1));
        write(out, item, depth.map(|depth| depth + 1));
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(close);
}

fn new_line(out: &mut String, depth: Option<usize>) {
    let Some(depth) = depth else {
        return;
    };
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_texts_stay_as_they_are_within_valid_json() {
        let raw = "\n {\"n\":9007199254740993,\"e\":1E2,\"d\":0.10,\"d\":1}\t\n";
        let value = Json::Object(vec![
            ("payload", Json::Raw(raw.to_owned())),
            ("text", Json::from("a\"b\\c\u{1b}\n")),
            ("list", Json::List(vec![Json::Null, Json::from(true), Json::from(7u32)])),
            ("empty", Json::List(Vec::new())),
        ]);
        let text = value.print();
        assert!(text.contains(raw), "{text}");
        let parsed = serde_json::from_str::<serde_json::Value>(&text).unwrap();
        assert_eq!(parsed["text"], "a\"b\\c\u{1b}\n");
        assert_eq!(parsed["list"][2], 7);
        let line = value.line();
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), parsed);
    }
}
