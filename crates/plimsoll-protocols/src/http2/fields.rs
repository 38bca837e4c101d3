//! The header blocks of requests, and header fields that differ from call to call. Varying fields are encoded
//! as literals that change no dynamic table (RFC 7541, 6.2.2), so that the rest of the block stays constant.

use plimsoll_model::rows::template::{
    MAX_CAPTURED_VALUE_BYTES, MetadataField, RenderContext, Template, TraceIds, VariationSettings,
    trace_ids,
};
use plimsoll_wire::hpack::{ENTRY_OVERHEAD_BYTES, begin_literal, prefix_with_length};

/// A header block that is the same for every call.
#[derive(Clone, Debug)]
pub(crate) struct RequestBlock {
    bytes: Box<[u8]>,
    /// The offset in `bytes` at which the pseudo-header fields end.
    pseudo_end: usize,
}

impl RequestBlock {
    /// Encodes a block. `fields` must start with the pseudo-header fields.
    pub(crate) fn encode<'a>(
        fields: &[(&'a str, &'a str)],
        mut encode: impl FnMut(&[(&'a str, &'a str)]) -> Vec<u8>,
    ) -> RequestBlock {
        let count = fields.partition_point(|(name, _)| name.starts_with(':'));
        let mut bytes = encode(&fields[..count]);
        let pseudo = bytes.len();
        bytes.append(&mut encode(&fields[count..]));
        RequestBlock {
            bytes: bytes.into(),
            pseudo_end: pseudo,
        }
    }

    /// Creates a block from encoded fields, all of which are written before the varying fields.
    pub(crate) fn from_encoded(bytes: Vec<u8>) -> RequestBlock {
        RequestBlock {
            pseudo_end: bytes.len(),
            bytes: bytes.into(),
        }
    }

    /// Returns the pseudo-header fields and the regular fields.
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.pseudo_end)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The name of a pseudo-header field, its encoded name, and its value.
type PseudoField = (&'static str, Box<[u8]>, Template);

/// The prepared varying header fields of calls.
#[derive(Debug)]
pub(crate) struct VaryingFields {
    variation: VariationSettings,
    /// The pseudo-header fields that vary: `:method`, `:path` or both.
    pseudo: Box<[PseudoField]>,
    /// The varying regular fields, each with its encoded name.
    fields: Box<[(Box<[u8]>, MetadataField)]>,
}

impl VaryingFields {
    /// Prepares the varying fields; returns `None` if no field varies.
    pub(crate) fn new(
        variation: &VariationSettings,
        (method, path): (Option<&Template>, Option<&Template>),
        fields: &[MetadataField],
    ) -> Option<VaryingFields> {
        let named = |name: &str| {
            let mut begun = Vec::new();
            begin_literal(name, &mut begun);
            begun.into_boxed_slice()
        };
        let fields: Box<_> = fields
            .iter()
            .map(|field| (named(&field.name), field.clone()))
            .collect();
        let pseudo = [(":method", method), (":path", path)].into_iter();
        let pseudo: Box<_> = pseudo
            .filter_map(|(name, template)| Some((name, named(name), template?.clone())))
            .collect();
        (!pseudo.is_empty() || !fields.is_empty()).then(|| VaryingFields {
            variation: variation.clone(),
            pseudo,
            fields,
        })
    }

    /// Returns the render context of call `number`. `unix_ns`: the time in nanoseconds since 1970.
    #[inline]
    pub(crate) fn render_context(&self, number: u64, unix_ns: u64) -> RenderContext<'_> {
        self.variation.render_context(number, 0, unix_ns)
    }

    /// Appends the header block of a call: the constant fields and the varying ones.
    #[inline]
    pub(crate) fn write(
        &self,
        constant: &RequestBlock,
        moment: &RenderContext<'_>,
        block: &mut Vec<u8>,
    ) {
        let (pseudo, rest) = constant.parts();
        block.extend_from_slice(pseudo);
        // Pseudo-header fields precede all others (RFC 9113, 8.3).
        for (_, name, template) in &self.pseudo {
            block.extend_from_slice(name);
            let start = block.len();
            template.write(moment, block);
            prefix_with_length(block, start);
        }
        block.extend_from_slice(rest);
        for (name, field) in &self.fields {
            block.extend_from_slice(name);
            let start = block.len();
            field.write(moment, block);
            prefix_with_length(block, start);
        }
    }

    /// Returns the maximum size of the fields in a header list in bytes, as counted by RFC 9113, 6.5.2. Values taken
    /// from responses are not counted, since their size is known only during the run.
    pub(crate) fn max_header_list_bytes(&self) -> usize {
        let size = |name: &str, most: usize| name.len() + most + ENTRY_OVERHEAD_BYTES;
        let fields = self.fields.iter();
        let sizes = fields.map(|(_, field)| {
            let taken = field.template.captured_indices().count() * MAX_CAPTURED_VALUE_BYTES;
            size(&field.name, field.max_bytes().saturating_sub(taken))
        });
        let pseudo = self.pseudo.iter();
        let pseudo = pseudo.map(|(name, _, template)| size(name, template.length_bounds().1));
        sizes.chain(pseudo).sum()
    }

    pub(crate) fn trace_ids(&self) -> Option<TraceIds> {
        trace_ids(&self.variation, self.fields.iter().map(|(_, field)| field))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(_, field)| &*field.name)
    }
}

/// Appends a field as a literal that changes no dynamic table.
pub(crate) fn put_literal(name: &str, value: &[u8], block: &mut Vec<u8>) {
    begin_literal(name, block);
    let start = block.len();
    block.extend_from_slice(value);
    prefix_with_length(block, start);
}

#[cfg(test)]
mod tests {
    use plimsoll_model::rows::template::RowOrder;

    use super::*;
    use plimsoll_wire::hpack::{Decoder, Encoder};

    fn fields(typed: &[(&str, &str)]) -> VaryingFields {
        let mut slots = 0;
        let mut parse = |typed| Template::parse(typed, &mut slots, None).unwrap();
        let path = parse("/{{seq}}/x");
        let fields: Vec<_> = typed
            .iter()
            .map(|(name, typed)| MetadataField {
                name: (*name).to_owned(),
                typed: (*typed).to_owned(),
                template: parse(typed),
            })
            .collect();
        let variation = VariationSettings::new(1, 1, 0, RowOrder::RoundRobin);
        VaryingFields::new(&variation, (None, Some(&path)), &fields).unwrap()
    }

    #[test]
    fn field_values_of_any_length_round_trip() {
        for length in [0, 1, 125, 126, 127, 128, 253, 254, 255, 400, 20_000] {
            let text = "x".repeat(length);
            let fields = fields(&[("x-a", &format!("{text}{{{{seq}}}}")), ("b", "{{client}}")]);
            let mut block = Vec::new();
            let constant =
                RequestBlock::encode(&[(":method", "GET"), ("te", "trailers")], |fields| {
                    Encoder::encode_plain(fields.iter().copied())
                });
            fields.write(&constant, &fields.render_context(7, 0), &mut block);
            let mut decoded = Vec::new();
            let mut decoder = Decoder::new(4_096, 1 << 20);
            decoder
                .decode(&block, |field| {
                    decoded.push((field.name.to_vec(), field.value.to_vec()));
                })
                .unwrap();
            let field = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
            let expected = [
                field(b":method", b"GET"),
                field(b":path", b"/7/x"),
                field(b"te", b"trailers"),
                (b"x-a".to_vec(), format!("{text}7").into_bytes()),
                (b"b".to_vec(), b"0".to_vec()),
            ];
            assert_eq!(decoded, expected);
            assert!(fields.max_header_list_bytes() >= length + 4 + 64);
        }
    }

    #[test]
    fn binary_uuid_is_unpadded_base64() {
        let fields = fields(&[("id-bin", "{{uuid}}")]);
        let mut block = Vec::new();
        let constant = RequestBlock::encode(&[], |_| Vec::new());
        fields.write(&constant, &fields.render_context(0, 0), &mut block);
        let value = &block[block.len() - 22..];
        assert!(
            value
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || b"+/".contains(b))
        );
        assert_eq!(block[block.len() - 23], 22);
    }
}
