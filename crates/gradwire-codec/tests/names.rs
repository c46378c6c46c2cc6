//! Names and wire identities of codecs.

mod cases;

use std::collections::HashSet;

use cases::all_codecs;
use gradwire_codec::{BlockCodec, Codec, Format, Rounding, Scale};
use proptest::prelude::*;

#[test]
fn names_round_trip() {
    for codec in all_codecs() {
        assert_eq!(codec.to_string().parse(), Ok(codec), "{codec}");
    }
    for name in Codec::NAMES {
        let codec: Codec = name.parse().expect("a listed name is one");
        assert_eq!(codec.to_string(), name);
    }
}

#[test]
fn codes_round_trip_and_differ() {
    let codes: HashSet<u32> = all_codecs().into_iter().map(Codec::code).collect();
    assert_eq!(codes.len(), all_codecs().len());
    assert!(!codes.contains(&0));
    for codec in all_codecs() {
        assert_eq!(Codec::from_code(codec.code()), Some(codec));
    }
    let found = (0..1 << 18).filter(|code| Codec::from_code(*code).is_some()).count();
    assert_eq!(found, codes.len(), "no other number is a code");
}

proptest! {
    #[test]
    fn any_code_is_its_codec(code: u32) {
        if let Some(codec) = Codec::from_code(code) {
            prop_assert_eq!(codec.code(), code);
        }
    }

    #[test]
    fn any_text_parses_or_fails(text in "(int4|int8|sign1|bf16|x)?[/+a-z0-9-]{0,20}") {
        let _ = text.parse::<Codec>();
    }
}

#[test]
fn options() {
    let block = |text: &str| match text.parse() {
        Ok(Codec::Block(block)) => block,
        other => panic!("{text} gives {other:?}"),
    };
    assert_eq!(block("int8").format, Format::Int { bits: 8 });
    assert_eq!(block("int8").block, 256);
    assert_eq!(block("int8/64").block, 64);
    assert_eq!(block("int4").format, Format::Grid4);
    assert_eq!(block("int4+uniform").format, Format::Int { bits: 4 });
    assert_eq!(block("int4+stochastic").format, Format::Int { bits: 4 });
    assert_eq!(block("int4+stochastic").rounding, Rounding::Stochastic);
    assert_eq!(block("int4+minmax").format, Format::IntMinMax { bits: 4 });
    assert_eq!(block("int8+supergroup").scale, Scale::SuperGroup);
    assert!(block("int8+hadamard").smoothing);
    assert!(!block("int4+no-hadamard").smoothing);
}

#[test]
fn complaints_say_what_there_is() {
    let complaint = |text: &str| text.parse::<Codec>().unwrap_err().to_string();
    for name in Codec::NAMES {
        assert!(complaint("int3").contains(name));
    }
    assert!(complaint("").contains("int8"));
    assert!(complaint("int8+fast").contains("hadamard"));
    assert!(complaint("int8/33").contains("512"));
    assert!(complaint("int8/").contains("512"));
    assert!(complaint("int8/99999").contains("512"));
    assert!(complaint("bf16+hadamard").contains("no options"));
    assert!(complaint("int8+grid").contains("int4"));
    assert!(complaint("fp8_e4m3+minmax").contains("int8"));
    assert!(complaint("sign1+stochastic").contains("nearest"));
    assert!(complaint("int4+grid+stochastic").contains("int4+uniform+stochastic"));
    assert!(complaint("int8+minmax+supergroup").contains("supergroup"));
}

#[test]
fn sizes_are_monotone() {
    for codec in all_codecs() {
        let sizes: Vec<usize> = (0..2000).map(|elements| codec.encoded_bytes(elements)).collect();
        assert_eq!(sizes[0], 0);
        assert!(sizes.windows(2).all(|pair| pair[0] <= pair[1]), "{codec}");
    }
}

#[test]
fn bits_of_an_element() {
    let bits = |text: &str| text.parse::<Codec>().expect(text).bits_per_element();
    assert_eq!(bits("bf16"), 16.0);
    assert_eq!(bits("int8"), 8.0625);
    assert_eq!(bits("int6"), 6.125);
    assert_eq!(bits("int4"), 4.3125);
    assert_eq!(bits("int4/64+perblock"), 4.25);
    assert_eq!(bits("sign1"), 1.125);
}

#[test]
#[should_panic(expected = "32, 64, 128, 256 or 512")]
fn no_codec_has_no_size() {
    let block = BlockCodec {
        format: Format::Sign,
        block: 48,
        scale: Scale::PerBlock,
        rounding: Rounding::Nearest,
        smoothing: false,
    };
    Codec::Block(block).encoded_bytes(1);
}
