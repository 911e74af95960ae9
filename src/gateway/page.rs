//! The page at `/docs`: the OpenAPI document for people, in one file that needs nothing else.

use std::fmt::Write as _;

use serde_json::Value;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
code,pre{font:14px/1.4 ui-monospace,monospace}table{border-collapse:collapse;width:100%}\
td{border-top:1px solid #8884;padding:.3rem .6rem .3rem 0;vertical-align:top}\
details{border:1px solid #8886;border-radius:.4rem;margin:.5rem 0;padding:.4rem .8rem}\
summary{cursor:pointer;font-weight:600}p{white-space:pre-line}:root{color-scheme:light dark}";

/// The page of a document.
pub(super) fn page(document: &Value) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Orbit API</title><style>{STYLE}</style>\n<h1>Orbit {}</h1>\n<p>{}</p>\n\
         <p>The same for programs: <a href=\"/openapi.json\">/openapi.json</a></p>\n<h2>Calls</h2>\n",
        escaped(&document["info"]["version"]),
        escaped(&document["info"]["description"]),
    );
    for (path, operations) in entries(&document["paths"]) {
        for (verb, operation) in entries(operations) {
            add_operation(&mut page, path, verb, operation);
        }
    }
    page.push_str("<h2>Messages</h2>\n");
    for (name, schema) in entries(&document["components"]["schemas"]) {
        let _ = writeln!(page, "<details id=\"{name}\"><summary>{name}</summary>");
        add_schema(&mut page, schema);
        page.push_str("</details>\n");
    }
    page.push_str("</html>\n");
    page
}

fn add_operation(page: &mut String, path: &str, verb: &str, operation: &Value) {
    let about =
        if operation["description"].is_null() { &operation["summary"] } else { &operation["description"] };
    let _ = write!(
        page,
        "<details><summary><code>{} {}</code></summary>\n<p>{}</p>\n",
        verb.to_ascii_uppercase(),
        escape(path),
        escaped(about)
    );
    if let Some(parameters) = operation["parameters"].as_array() {
        page.push_str("<table>\n");
        for parameter in parameters {
            let name = format!("{} ({})", escaped(&parameter["name"]), escaped(&parameter["in"]));
            add_row(page, &name, &parameter["schema"], &parameter["description"]);
        }
        page.push_str("</table>\n");
    }
    let schema = |holder: &Value| holder["content"]["application/json"]["schema"].clone();
    let body = schema(&operation["requestBody"]);
    if !body.is_null() {
        page.push_str("<p>Body</p>\n");
        add_schema(page, &body);
    }
    let answer = schema(&operation["responses"]["200"]);
    if !answer.is_null() {
        let _ = writeln!(page, "<p>Answer: {}</p>", kind(&answer));
    }
    page.push_str("</details>\n");
}

fn add_schema(page: &mut String, schema: &Value) {
    let _ = writeln!(page, "<p>{}</p>\n<table>", escaped(&schema["description"]));
    for (name, value) in entries(&schema["properties"]) {
        add_row(page, &escape(name), value, &value["description"]);
    }
    page.push_str("</table>\n");
}

fn add_row(page: &mut String, name: &str, schema: &Value, about: &Value) {
    let _ = writeln!(page, "<tr><td><code>{name}</code><td>{}<td><p>{}</p>", kind(schema), escaped(about));
}

/// What a value is, in a word.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next()) {
        return format!("<a href=\"#{name}\">{name}</a>");
    }
    if !schema["anyOf"].is_null() {
        return kind(&schema["anyOf"][0]);
    }
    match schema["type"].as_str().or_else(|| schema["type"][0].as_str()) {
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("string") if schema["format"] == "date-time" => "moment".to_owned(),
        Some(name) => escape(name),
        None => "any JSON".to_owned(),
    }
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

fn escaped(text: &Value) -> String {
    escape(text.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_every_call_and_loads_nothing() {
        let document: Value =
            serde_json::from_str(&super::super::openapi().expect("a document")).expect("JSON");
        let page = page(&document);
        for (path, _) in entries(&document["paths"]) {
            assert!(page.contains(&format!(" {path}</code>")), "{path}");
        }
        for foreign in ["<script", "src=", "http://", "https://", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("[A-Za-z0-9._-], the first a letter or digit"), "with the proto's comments");
        assert_eq!(escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
    }
}
