//! Finds the values in XML texts (SOAP, XML-RPC, property lists) with their positions.

use std::ops::Range;

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};

use super::request_value::{RequestValue, ValueSyntax};

/// Elements whose values are named by the element before them, as in XML-RPC and property lists.
const GENERIC_ELEMENTS: [&str; 9] = [
    "boolean", "data", "double", "i4", "int", "integer", "string", "text", "value",
];

/// An open element, which may be a value if it has no children.
struct OpenElement {
    name: String,
    /// The offset of the element's content, in bytes.
    begin: usize,
}

/// Returns the contents of elements without children, and the attributes; `None` if the text is not XML.
pub(super) fn find_xml_values(text: &str) -> Option<Vec<RequestValue>> {
    if !text.trim_start().starts_with('<') {
        return None;
    }
    let mut reader = Reader::from_str(text);
    let mut values = Vec::new();
    let mut open: Option<OpenElement> = None;
    // The content of the last element that names the value after it.
    let mut label = String::new();
    loop {
        let begin = usize::try_from(reader.buffer_position()).ok()?;
        let event = reader.read_event().ok()?;
        let end = usize::try_from(reader.buffer_position()).ok()?;
        match event {
            Event::Start(tag) => {
                let name = push_attributes(text, &tag, &mut values)?;
                open = Some(OpenElement { name, begin: end });
            }
            Event::Empty(tag) => drop(push_attributes(text, &tag, &mut values)?),
            Event::End(_) => {
                let Some(element) = open.take() else {
                    continue;
                };
                let span = content_span(text, element.begin..begin);
                let value = unescape(&text[span.clone()]).ok()?.into_owned();
                if matches!(&*element.name, "name" | "key") {
                    label.clone_from(&value);
                }
                let is_generic = GENERIC_ELEMENTS.contains(&&*element.name);
                let name = if is_generic && !label.is_empty() {
                    std::mem::take(&mut label)
                } else {
                    element.name
                };
                push_value(&mut values, span, value, name);
            }
            Event::Eof => break,
            _ => {}
        }
    }
    (!values.is_empty()).then_some(values)
}

/// Adds the values of the attributes. Returns the name of the element's content: the attribute `name` or `key`, or the
/// element's name.
fn push_attributes(
    text: &str,
    tag: &BytesStart<'_>,
    values: &mut Vec<RequestValue>,
) -> Option<String> {
    let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let own_name = as_text(tag.local_name().as_ref());
    let mut label = None;
    let mut found = Vec::new();
    for attribute in tag.attributes() {
        let attribute = attribute.ok()?;
        let name = as_text(attribute.key.local_name().as_ref());
        if attribute.key.as_ref().starts_with(b"xmlns") {
            continue;
        }
        // The reader borrows from `text`, so the difference of the pointers is the offset.
        let begin = (attribute.value.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
        let span = begin..begin.checked_add(attribute.value.len())?;
        let value = unescape(text.get(span.clone())?).ok()?.into_owned();
        if matches!(&*name, "name" | "key") {
            label = Some(value.clone());
        }
        found.push((span, value, name));
    }
    for (span, value, name) in found {
        let name = match &label {
            Some(label) if name == "value" => label.clone(),
            _ => name,
        };
        push_value(values, span, value, name);
    }
    Some(label.unwrap_or(own_name))
}

fn push_value(values: &mut Vec<RequestValue>, span: Range<usize>, value: String, name: String) {
    if !value.is_empty() {
        values.push(RequestValue {
            span,
            value,
            name,
            place: ValueSyntax::Embedded,
        });
    }
}

/// Returns the span of an element's content without surrounding white space and CDATA markers.
fn content_span(text: &str, span: Range<usize>) -> Range<usize> {
    let content = &text[span.clone()];
    let mut begin = span.start + (content.len() - content.trim_start().len());
    let mut end = begin + content.trim().len();
    let inside = text[begin..end]
        .strip_prefix("<![CDATA[")
        .and_then(|content| content.strip_suffix("]]>"));
    if let Some(inside) = inside {
        begin += "<![CDATA[".len();
        end = begin + inside.len();
    }
    begin..end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<Vec<String>> {
        let values = find_xml_values(text)?;
        let shown = values
            .iter()
            .map(|v| format!("{}={}={}", v.name, &text[v.span.clone()], v.value));
        Some(shown.collect())
    }

    #[test]
    fn contents_and_attributes_have_places() {
        let soap = "<?xml version=\"1.0\"?>\n<s:Envelope xmlns:s=\"urn:x\"><s:Body id='b 1'>\n <w:Password>a&amp;b</w:Password>\
                    <note><![CDATA[ <x> ]]></note><empty/></s:Body></s:Envelope>";
        assert_eq!(
            shown(soap).expect("XML"),
            ["id=b 1=b 1", "Password=a&amp;b=a&b", "note= <x> = <x> "]
        );
        assert_eq!(shown("no XML"), None);
        assert_eq!(shown("<a><b></a>"), None);
        assert_eq!(shown("<a>"), None);
    }

    #[test]
    fn labels_name_values_behind_them() {
        let rpc = "<struct><member><name>password</name><value><string>p</string></value></member>\
                   <member><name>n</name><value><int>7</int></value></member></struct>";
        assert_eq!(
            shown(rpc).expect("XML"),
            [
                "name=password=password",
                "password=p=p",
                "name=n=n",
                "n=7=7"
            ]
        );
        let fields = "<f><field name=\"pin\">12</field><param name='otp' value='34'/></f>";
        assert_eq!(
            shown(fields).expect("XML"),
            ["name=pin=pin", "pin=12=12", "name=otp=otp", "otp=34=34"]
        );
    }
}
