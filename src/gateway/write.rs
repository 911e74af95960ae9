//! Messages to JSON: names as in the proto, defaults written out, JSON texts as the values they are.

use prost_reflect::{DynamicMessage, Kind, ReflectMessage as _, SerializeOptions, Value};
use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap as _},
};
use serde_json::value::RawValue;

use super::api::{JsonTexts, is_well_known};

/// A message as JSON.
pub(super) fn to_json(message: &DynamicMessage, texts: &JsonTexts) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Written { value: message, texts })
}

struct Written<'a, T> {
    value: T,
    texts: &'a JsonTexts,
}

impl Serialize for Written<'_, &DynamicMessage> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (message, texts) = (self.value, self.texts);
        let descriptor = message.descriptor();
        if is_well_known(&descriptor) {
            let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false);
            return message.serialize_with_options(serializer, &options);
        }
        let mut map = serializer.serialize_map(None)?;
        for field in descriptor.fields() {
            // What can be absent, and is, has no default to write.
            if field.supports_presence() && !message.has_field(&field) {
                continue;
            }
            let value = message.get_field(&field);
            if texts.holds(&field) {
                // No text is no value, not even `null`.
                if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
                    let raw: &RawValue = serde_json::from_str(text).map_err(S::Error::custom)?;
                    map.serialize_entry(field.name(), raw)?;
                }
            } else {
                map.serialize_entry(field.name(), &Written { value: (&*value, &field.kind()), texts })?;
            }
        }
        map.end()
    }
}

impl Serialize for Written<'_, (&Value, &Kind)> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (value, kind) = self.value;
        match value {
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::I32(value) => serializer.serialize_i32(*value),
            Value::U32(value) => serializer.serialize_u32(*value),
            // They can pass what a double holds.
            Value::I64(value) => serializer.collect_str(value),
            Value::U64(value) => serializer.collect_str(value),
            Value::String(value) => serializer.serialize_str(value),
            Value::EnumNumber(number) => match kind.as_enum().and_then(|names| names.get_value(*number)) {
                Some(named) => serializer.serialize_str(named.name()),
                None => serializer.serialize_i32(*number),
            },
            Value::Message(message) => Written { value: message, texts: self.texts }.serialize(serializer),
            Value::List(values) => {
                serializer.collect_seq(values.iter().map(|v| Written { value: (v, kind), texts: self.texts }))
            }
            Value::F32(_) | Value::F64(_) | Value::Bytes(_) | Value::Map(_) => {
                Err(S::Error::custom("the contract has neither fractions, bytes nor maps"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::api::Api, *};
    use crate::proto::{self, GetTaskResponse, Task, TaskError, TaskState};

    fn written(task: Task) -> String {
        let api = Api::read().expect("the contract");
        let descriptor = api.pool.get_message_by_name("orbit.v1.GetTaskResponse").expect("a message");
        let mut message = DynamicMessage::new(descriptor);
        message.transcode_from(&GetTaskResponse { task: Some(task) }).expect("the same message");
        to_json(&message, &api.texts).expect("JSON")
    }

    #[test]
    fn names_are_the_protos_and_defaults_are_written_out() {
        let json = written(Task::default());
        for part in [
            r#""task_id":"""#,
            r#""attempt_count":0"#,
            r#""effect_uncertain":false"#,
            r#""state":"TASK_STATE_UNSPECIFIED""#,
        ] {
            assert!(json.contains(part), "{part} in {json}");
        }
        for absent in
            ["payload", "completed_at", "error", "cancel", "retry"].map(|name| format!("\"{name}\""))
        {
            assert!(!json.contains(&absent), "{absent} in {json}");
        }
    }

    #[test]
    fn json_texts_moments_and_enums_are_values() {
        let payload = r#"{"n":9007199254740993,"e":1E2, "d":0.10,"d":1}"#;
        let json = written(Task {
            payload: payload.to_owned(),
            result: "null".to_owned(),
            state: TaskState::Failed.into(),
            created_at: Some(prost_types::Timestamp { seconds: 1, nanos: 500_000 }),
            error: Some(TaskError {
                code: "X".to_owned(),
                details: "[ ]".to_owned(),
                ..TaskError::default()
            }),
            retry: Some(proto::RetryPolicy { max_attempts: Some(3), ..proto::RetryPolicy::default() }),
            ..Task::default()
        });
        for part in [
            &format!("\"payload\":{payload}"),
            "\"result\":null",
            "\"state\":\"TASK_STATE_FAILED\"",
            "\"created_at\":\"1970-01-01T00:00:01.000500Z\"",
            "\"details\":[ ]",
            "\"retry\":{\"max_attempts\":3}",
        ] {
            assert!(json.contains(part), "{part} in {json}");
        }
    }

    #[test]
    fn a_text_that_is_not_json_is_an_error_not_a_broken_body() {
        let api = Api::read().expect("the contract");
        let descriptor = api.pool.get_message_by_name("orbit.v1.TaskError").expect("a message");
        let mut message = DynamicMessage::new(descriptor);
        message.set_field_by_name("details", Value::String("{".to_owned()));
        assert!(to_json(&message, &api.texts).is_err());
    }
}
