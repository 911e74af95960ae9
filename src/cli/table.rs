//! Answers for people: aligned columns, plain text.

use super::text::harmless;

/// Rows below a heading, each column as wide as its widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.iter().map(|cell| harmless(cell)).collect());
    }

    pub(crate) fn print(&self) -> String {
        aligned(&self.rows)
    }
}

/// A list of names with their values, one a line; empty values are left out.
pub(crate) fn fields(fields: Vec<(&str, String)>) -> String {
    let present = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = present.map(|(name, value)| vec![name.to_owned(), harmless(&value)]).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_stay_on_their_line() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(&["ä".to_owned(), "one\nline".to_owned()]);
        table.row(&["a-longer-name".to_owned(), String::new()]);
        assert_eq!(table.print(), "NAME           STATE\nä              one\\nline\na-longer-name\n");
    }
}
