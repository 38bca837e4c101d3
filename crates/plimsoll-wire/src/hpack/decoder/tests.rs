use proptest::prelude::*;

use super::*;

type Fields = Vec<(String, String)>;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, HpackError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        fields.push((text(field.name), text(field.value)));
    })?;
    Ok(fields)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn fields(lines: &[&str]) -> Fields {
    lines
        .iter()
        .map(|line| {
            let (name, value) = line.rsplit_once(": ").unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

/// Checks blocks decoded one after another, and the table's size after each.
fn assert_decodes(table_size: u32, steps: &[(&str, &[&str], usize)]) {
    let mut decoder = Decoder::new(table_size, 1 << 16);
    for (block, expected, size) in steps {
        assert_eq!(
            decode(&mut decoder, &hex(block)),
            Ok(fields(expected)),
            "{block}"
        );
        assert_eq!(decoder.table.size(), *size, "{block}");
    }
}

#[test]
fn rfc7541_c2_literals() {
    assert_decodes(
        4096,
        &[
            (
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
                &["custom-key: custom-header"],
                55,
            ),
            (
                "040c 2f73 616d 706c 652f 7061 7468",
                &[":path: /sample/path"],
                55,
            ),
            (
                "1008 7061 7373 776f 7264 0673 6563 7265 74",
                &["password: secret"],
                55,
            ),
            ("82", &[":method: GET"], 55),
        ],
    );
}

const C3: [&[&str]; 3] = [
    &[
        ":method: GET",
        ":scheme: http",
        ":path: /",
        ":authority: www.example.com",
    ],
    &[
        ":method: GET",
        ":scheme: http",
        ":path: /",
        ":authority: www.example.com",
        "cache-control: no-cache",
    ],
    &[
        ":method: GET",
        ":scheme: https",
        ":path: /index.html",
        ":authority: www.example.com",
        "custom-key: custom-value",
    ],
];

#[test]
fn rfc7541_c3_requests() {
    assert_decodes(
        4096,
        &[
            (
                "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                C3[0],
                57,
            ),
            ("8286 84be 5808 6e6f 2d63 6163 6865", C3[1], 110),
            (
                "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
                C3[2],
                164,
            ),
        ],
    );
}

#[test]
fn rfc7541_c4_requests_huffman() {
    assert_decodes(
        4096,
        &[
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", C3[0], 57),
            ("8286 84be 5886 a8eb 1064 9cbf", C3[1], 110),
            (
                "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
                C3[2],
                164,
            ),
        ],
    );
}

const C5_RESPONSES: [&[&str]; 3] = [
    &[
        ":status: 302",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:21 GMT",
        "location: https://www.example.com",
    ],
    &[
        ":status: 307",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:21 GMT",
        "location: https://www.example.com",
    ],
    &[
        ":status: 200",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:22 GMT",
        "location: https://www.example.com",
        "content-encoding: gzip",
        "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    ],
];

#[test]
fn rfc7541_c5_responses_with_eviction() {
    assert_decodes(
        256,
        &[
            (
                "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230
                 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65
                 7861 6d70 6c65 2e63 6f6d",
                C5_RESPONSES[0],
                222,
            ),
            ("4803 3330 37c1 c0bf", C5_RESPONSES[1], 222),
            (
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220
                 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157
                 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076
                 6572 7369 6f6e 3d31",
                C5_RESPONSES[2],
                215,
            ),
        ],
    );
}

#[test]
fn rfc7541_c6_responses_with_eviction_huffman() {
    assert_decodes(
        256,
        &[
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0
                 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                C5_RESPONSES[0],
                222,
            ),
            ("4883 640e ffc1 c0bf", C5_RESPONSES[1], 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b
                 d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27
                 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                C5_RESPONSES[2],
                215,
            ),
        ],
    );
}

#[test]
fn malformed_blocks_are_rejected() {
    for (block, error) in [
        ("80", HpackError::BadIndex(0)),
        ("be", HpackError::BadIndex(62)),
        ("7f 00 01 61", HpackError::BadIndex(63)),
        ("0f 80 01 01 61", HpackError::BadIndex(143)),
        ("ff ff ff ff ff ff", HpackError::IntegerOverflow),
        ("40 05 61", HpackError::Truncated),
        ("40 01 61", HpackError::Truncated),
        ("00", HpackError::Truncated),
        ("7f", HpackError::Truncated),
        ("00 7f ff ff ff ff 07", HpackError::Truncated),
        ("00 81 06 01 61", HpackError::HuffmanPadding),
        ("00 84 ff ff ff ff 01 61", HpackError::HuffmanEos),
        ("82 20", HpackError::MisplacedSizeUpdate),
        (
            "3f e2 1f",
            HpackError::SizeUpdateTooLarge {
                size: 4097,
                limit: 4096,
            },
        ),
    ] {
        let mut decoder = Decoder::new(4096, 1 << 16);
        assert_eq!(decode(&mut decoder, &hex(block)), Err(error), "{block}");
    }
}

/// RFC 7541 §6.2.3 defines the representation of sensitive fields.
#[test]
fn only_never_indexed_fields_are_sensitive() {
    let mut decoder = Decoder::new(4096, 1 << 16);
    // Never indexed, not indexed, indexed, and the resulting table entry.
    let block = hex("1001 6101 62 0001 6101 62 4001 6101 62 be");
    let mut sensitive = Vec::new();
    decoder
        .decode(&block, |field| sensitive.push(field.sensitive))
        .unwrap();
    assert_eq!(sensitive, [true, false, false, false]);
}

#[test]
fn size_update_evicts_entries() {
    let mut decoder = Decoder::new(4096, 1 << 16);
    decode(&mut decoder, &hex("4001 6101 62")).unwrap();
    // An encoder signals with updates to 0 and back to 4096 that it emptied the table.
    assert_eq!(
        decode(&mut decoder, &hex("20 3f e1 1f 82")).unwrap().len(),
        1
    );
    assert_eq!(
        decode(&mut decoder, &hex("be")),
        Err(HpackError::BadIndex(62))
    );
}

#[test]
fn name_may_reference_evicted_entry() {
    let mut decoder = Decoder::new(40, 1 << 16);
    decode(&mut decoder, &hex("4002 6161 0131")).unwrap();
    assert_eq!(
        decode(&mut decoder, &hex("7e 0132")),
        Ok(fields(&["aa: 2"]))
    );
    assert_eq!(decode(&mut decoder, &hex("be")), Ok(fields(&["aa: 2"])));
}

#[test]
fn oversized_list_truncates_but_updates_table() {
    let mut decoder = Decoder::new(4096, 100);
    let mut block = hex("4001 6101 62");
    block.extend([0xbe; 5]);
    let mut shown = 0;
    let decoded = decoder.decode(&block, |_| shown += 1).unwrap();
    assert_eq!(
        (shown, decoded.is_list_too_large, decoded.has_changed_table),
        (2, true, true)
    );
    let decoded = decoder.decode(&[0xbe], |_| shown += 1).unwrap();
    assert_eq!(
        (shown, decoded.is_list_too_large, decoded.has_changed_table),
        (3, false, false)
    );
}

/// nginx 1.22 adds all fields of each response to the table.
#[test]
fn readding_full_table_is_steady() {
    // Two entries of 34 bytes; three of them fill the table.
    let (block, other) = (hex("4001 6101 31 4001 6201 32"), hex("4001 6101 33"));
    let mut decoder = Decoder::new(110, 1 << 16);
    let mut steady = |block: &[u8]| decoder.decode(block, |_| ()).unwrap().is_steady;
    assert_eq!([(); 3].map(|()| steady(&block)), [false, true, true]);
    assert_eq!([(); 4].map(|()| steady(&other)), [false, false, true, true]);
    // The block refers to an entry that it has added, so it may add another the next time.
    let refers = hex("7e 0133");
    assert_eq!([(); 4].map(|()| steady(&refers)), [false; 4]);
    assert!(steady(&hex("be")));
    assert!(!steady(&hex("20 be 82")[..1]), "a table that was emptied");
}

proptest! {
    /// Decodes one block repeatedly, after an arbitrary other one.
    #[test]
    fn repeated_steady_block_keeps_table(
        before: Vec<(u8, u8)>,
        added in proptest::collection::vec((0..4_u8, 0..40_u8), 1..4),
        max in 0..400_u32,
    ) {
        let block = |fields: &[(u8, u8)]| -> Vec<u8> {
            let literal = |(name, length): &(u8, u8)| {
                let mut bytes = vec![0x40, 1, b'a' + name % 26, length % 100];
                bytes.extend(vec![b'v'; usize::from(length % 100)]);
                bytes
            };
            fields.iter().flat_map(literal).collect()
        };
        let mut decoder = Decoder::new(max, 1 << 16);
        decoder.decode(&block(&before), |_| ()).unwrap();
        let mut was_steady = false;
        for _ in 0..30 {
            let held = |decoder: &Decoder| -> Vec<(Vec<u8>, Vec<u8>)> {
                let entry = |n| decoder.table.entry(n);
                let entries = (0..decoder.table.len()).filter_map(entry);
                entries.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
            };
            let earlier = held(&decoder);
            let decoded = decoder.decode(&block(&added), |_| ()).unwrap();
            prop_assert!(!was_steady || (decoded.is_steady && held(&decoder) == earlier));
            was_steady = decoded.is_steady;
        }
        let size: u32 = added.iter().map(|(_, length)| 33 + u32::from(*length)).sum();
        let fits = size <= max;
        prop_assert!(was_steady || !fits);
    }

    #[test]
    fn arbitrary_blocks_never_panic(blocks: Vec<Vec<u8>>) {
        let mut decoder = Decoder::new(256, 1024);
        for block in blocks {
            if decoder.decode(&block, |_| ()).is_err() {
                break;
            }
            prop_assert!(decoder.table.size() <= 256);
        }
    }
}
