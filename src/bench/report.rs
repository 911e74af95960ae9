//! What a measurement found: each figure under a key for scripts and a label for people.

use serde_json::{Map, Value};

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// For scripts.
    pub key: String,
    /// For people.
    pub label: String,
    /// The value.
    pub value: Value,
    /// Its unit, for people.
    pub unit: &'static str,
}

/// What a measurement found, in the order of telling.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The figures.
    pub figures: Vec<Figure>,
    /// What makes them doubtful.
    pub warnings: Vec<String>,
}

impl Report {
    pub(super) fn add(&mut self, key: &str, label: &str, value: f64, unit: &'static str) {
        // A figure has three digits or so; more would feign a precision that a shared machine does not have.
        let digits = if value.abs() >= 100.0 {
            0
        } else if value.abs() >= 10.0 {
            1
        } else {
            3
        };
        let rounded: f64 = format!("{value:.digits$}").parse().unwrap_or(value);
        self.figures.push(Figure {
            key: key.to_owned(),
            label: label.to_owned(),
            value: rounded.into(),
            unit,
        });
    }

    pub(super) fn text(&mut self, key: &str, label: &str, value: impl Into<String>) {
        let value = Value::String(value.into());
        self.figures.push(Figure { key: key.to_owned(), label: label.to_owned(), value, unit: "" });
    }

    /// A number found before.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.key == key).and_then(|figure| figure.value.as_f64())
    }

    /// One flat object.
    pub fn to_json(&self) -> Value {
        let figures = self.figures.iter().map(|figure| (figure.key.clone(), figure.value.clone()));
        let mut object: Map<String, Value> = figures.collect();
        object.insert("warnings".to_owned(), self.warnings.clone().into());
        object.into()
    }
}
