//! Foreign text on a terminal. Names, reasons, errors and JSON texts come from workers, producers and other operators:
//! nothing in them may command the terminal, end a line, or make a reader see another order than there is.

use std::fmt::Write as _;

/// The text on one line, as Rust would write it within quotes where it could do harm: `\n`, `\u{1b}`, `\u{202e}`.
pub(crate) fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => out.extend(character.escape_default()),
            _ if commands(character) => out.extend(character.escape_unicode()),
            _ => out.push(character),
        }
    }
    out
}

/// A JSON text that says the same and commands nothing. The line breaks between its tokens stay.
pub(crate) fn harmless_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        // Valid JSON has the others within its strings only.
        if commands(character) && !matches!(character, '\n' | '\r' | '\t') {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(character);
        }
    }
    out
}

/// Whether a character does something else than to be seen: controls, line breaks, and those that are invisible or turn
/// the direction of writing (of Unicode's category Cf all but the joiners within words and emoji).
fn commands(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: &str = "red \u{1b}[31m\u{9b}31m\r over\nstate  SUCCEEDED\t\u{202e}desrever\u{2066}\u{2028}\u{feff}\u{e0041} end";

    #[test]
    fn nothing_commands_the_terminal_and_all_of_it_is_seen() {
        assert_eq!(
            harmless(BAD),
            "red \\u{1b}[31m\\u{9b}31m\\r over\\nstate  SUCCEEDED\\t\\u{202e}desrever\\u{2066}\\u{2028}\\u{feff}\\u{e0041} end"
        );
    }

    #[test]
    fn what_people_write_stays() {
        for text in [
            "größer \u{2014} naïve \u{4f60}\u{597d} \u{5e9}\u{5dc}\u{5d5}\u{5dd}",
            "\u{1f468}\u{200d}\u{1f680}",
            "C:\\temp",
        ] {
            assert_eq!(harmless(text), text);
        }
    }

    #[test]
    fn json_says_the_same_and_commands_nothing() {
        let value = serde_json::json!({ "a": BAD, "b": "\u{1f600}" });
        let text = format!("{{\n {}", &value.to_string()[1..]);
        let shown = harmless_json(&text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        assert!(!shown.chars().any(|c| commands(c) && c != '\n'), "{shown}");
        assert!(
            shown.contains("\\u202e") && shown.contains("\\udb40\\udc41") && shown.contains('\u{1f600}'),
            "{shown}"
        );
    }
}
