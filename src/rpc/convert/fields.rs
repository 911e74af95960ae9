//! Reads the fields of one request and collects what is wrong with them.

use uuid::Uuid;

use crate::domain::{
    json::JsonText,
    rejection::{FieldProblem, Rejection},
    time::Moment,
};

use super::time;

/// Items of a page when the caller does not say.
const PAGE_SIZE_DEFAULT: u32 = 50;
/// The most items of a page.
const PAGE_SIZE_MAX: u32 = 1_000;

/// What is wrong with the fields read so far.
#[derive(Default)]
pub(crate) struct Fields {
    problems: Vec<FieldProblem>,
}

impl Fields {
    /// Notes a bad field.
    pub(crate) fn bad(&mut self, field: &'static str, description: impl Into<String>) {
        self.problems.push(FieldProblem::new(field, description));
    }

    /// Notes bad fields.
    pub(crate) fn all_bad(&mut self, problems: impl IntoIterator<Item = FieldProblem>) {
        self.problems.extend(problems);
    }

    /// Notes a field that does not pass a check.
    pub(crate) fn check(&mut self, field: &'static str, checked: Result<(), String>) {
        if let Err(description) = checked {
            self.bad(field, description);
        }
    }

    /// Reads a value that may be bad.
    pub(crate) fn read<T>(&mut self, field: &'static str, value: Result<T, String>) -> Option<T> {
        value.map_err(|description| self.bad(field, description)).ok()
    }

    /// Reads an id.
    pub(crate) fn id(&mut self, field: &'static str, text: &str) -> Option<Uuid> {
        self.read(field, uuid(text))
    }

    /// Reads a JSON text; an empty one stands for `null`.
    pub(crate) fn json(&mut self, field: &'static str, text: &str, bytes_max: usize) -> Option<JsonText> {
        JsonText::parse(text, bytes_max)
            .map_err(|problem| self.problems.push(FieldProblem::json(field, problem)))
            .ok()
    }

    /// Reads a moment that may be absent.
    pub(crate) fn moment(
        &mut self,
        field: &'static str,
        at: Option<prost_types::Timestamp>,
    ) -> Option<Moment> {
        self.read(field, time::moment(at?))
    }

    /// Reads how many items a page may have.
    pub(crate) fn page_size(&mut self, size: i32) -> u32 {
        match u32::try_from(size) {
            Ok(0) => PAGE_SIZE_DEFAULT,
            Ok(size) => size.min(PAGE_SIZE_MAX),
            Err(_) => {
                self.bad("page_size", format!("is {size}; must not be negative"));
                PAGE_SIZE_DEFAULT
            }
        }
    }

    /// What was read, if all of it was good. `None` only comes from a field that was noted as bad.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, Rejection> {
        match value {
            Some(value) if self.problems.is_empty() => Ok(value),
            _ => Err(Rejection::Invalid(self.problems)),
        }
    }
}

/// Reads an id.
pub(crate) fn uuid(text: &str) -> Result<Uuid, String> {
    if text.is_empty() {
        return Err("is required: a UUID".to_owned());
    }
    Uuid::try_parse(text)
        .map_err(|_| "is not a UUID, such as 0190f5c2-7b1e-7c3d-9a4f-2b6d8e0f1a3c".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_size_has_a_default_and_is_coerced_to_the_largest() {
        let mut fields = Fields::default();
        let sizes = [0, 1, 1_000, 1_001, i32::MAX].map(|size| fields.page_size(size));
        assert_eq!(sizes, [50, 1, 1_000, 1_000, 1_000]);
        assert_eq!(fields.finish(Some(())), Ok(()));
        let mut fields = Fields::default();
        fields.page_size(-1);
        assert!(matches!(fields.finish(Some(())), Err(Rejection::Invalid(p)) if p[0].field == "page_size"));
    }

    #[test]
    fn all_bad_fields_are_kept_in_the_order_they_were_read() {
        let mut fields = Fields::default();
        assert_eq!(fields.id("task_id", ""), None);
        assert_eq!(fields.id("attempt_id", "x"), None);
        assert_eq!(fields.json("result", "{", 10), None);
        let Err(Rejection::Invalid(problems)) = fields.finish(None::<()>) else {
            panic!("refused");
        };
        let names: Vec<_> = problems.iter().map(|p| p.field).collect();
        assert_eq!(names, ["task_id", "attempt_id", "result"]);
    }
}
