//! Answers for people: aligned columns, plain text.

/// Rows below a heading, each column as wide as its widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.iter().map(|cell| one_line(cell)).collect());
    }

    pub(crate) fn print(&self) -> String {
        aligned(&self.rows)
    }
}

/// A list of names with their values, one a line; empty values are left out.
pub(crate) fn fields(fields: Vec<(&str, String)>) -> String {
    let present = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = present.map(|(name, value)| vec![name.to_owned(), printable(&value)]).collect();
    aligned(&rows)
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell: &String| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Names, errors and JSON texts come from workers and producers: nothing in them may command the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && !matches!(character, '\n' | '\t') {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

/// As [`printable`], on one line.
pub(crate) fn one_line(text: &str) -> String {
    let text = printable(text);
    text.split(['\n', '\t']).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_stay_on_their_line() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(&["ä".to_owned(), "one\nline".to_owned()]);
        table.row(&["a-longer-name".to_owned(), String::new()]);
        assert_eq!(table.print(), "NAME           STATE\nä              one line\na-longer-name\n");
    }

    #[test]
    fn nothing_commands_the_terminal() {
        let shown = printable("red \u{1b}[31m\u{9b}31m\r end");
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
    }
}
