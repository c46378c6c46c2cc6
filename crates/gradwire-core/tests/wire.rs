//! What travels can be read again, and what can't be read is refused without a panic.

use gradwire_core::{
    Cause, Failure, FrameKind, HEADER_BYTES, Header, HeaderError, MAX_FAILURE_TEXT,
    MAX_PAYLOAD_BYTES, WIRE_VERSION, describe,
};
use proptest::prelude::*;

const KINDS: [FrameKind; 9] = [
    FrameKind::Data,
    FrameKind::Ready,
    FrameKind::Request,
    FrameKind::Acknowledge,
    FrameKind::Credit,
    FrameKind::Abort,
    FrameKind::Ping,
    FrameKind::Pong,
    FrameKind::Goodbye,
];

const CAUSES: [Cause; 6] = [
    Cause::PeerLost,
    Cause::PeerSilent,
    Cause::Mismatch,
    Cause::Timeout,
    Cause::Aborted,
    Cause::Violation,
];

prop_compose! {
    fn any_header()(
        kind in prop::sample::select(KINDS.to_vec()),
        codes in any::<[u8; 4]>(),
        early in any::<bool>(),
        payload_bytes in 0..=MAX_PAYLOAD_BYTES,
        words in any::<[u32; 5]>(),
        longs in any::<[u64; 4]>(),
    ) -> Header {
        let [collective, algorithm, dtype, op] = codes;
        let [argument, tag, edge, tile, credit] = words;
        let [group, sequence, count, chunk_bytes] = longs;
        Header {
            kind, collective, algorithm, dtype, op, early, payload_bytes, argument, group, sequence,
            tag, edge, tile, credit, count, chunk_bytes,
        }
    }
}

prop_compose! {
    fn any_failure()(
        cause in prop::sample::select(CAUSES.to_vec()),
        culprit in prop::option::of(0..u32::MAX),
        reporter in any::<u32>(),
        text in "\\PC{0,800}",
    ) -> Failure {
        Failure { cause, culprit, reporter, text }
    }
}

proptest! {
    #[test]
    fn a_header_is_read_as_it_was_written(header in any_header()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn bytes_that_can_be_read_are_what_would_be_written(bytes in any::<[u8; HEADER_BYTES]>()) {
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn one_wrong_byte_is_read_or_refused(
        header in any_header(),
        at in 0..HEADER_BYTES,
        byte in any::<u8>(),
    ) {
        let mut bytes = header.encode();
        bytes[at] = byte;
        match Header::decode(&bytes) {
            Ok(read) => {
                prop_assert_eq!(read.encode(), bytes);
                prop_assert!(!describe(&read).is_empty());
            }
            Err(HeaderError::Version(version)) => {
                prop_assert_eq!((at, version), (1, byte));
                prop_assert_ne!(version, WIRE_VERSION);
            }
            Err(HeaderError::Kind(kind)) => prop_assert_eq!((at, kind), (0, byte)),
            Err(HeaderError::Reserved) => prop_assert!(at == 6 || at == 7),
            Err(HeaderError::Payload(bytes)) => prop_assert!(bytes > MAX_PAYLOAD_BYTES),
        }
    }

    #[test]
    fn a_failure_is_read_as_it_was_written(failure in any_failure()) {
        let read = Failure::decode(&failure.encode()).expect("a written failure can be read");
        prop_assert_eq!((read.cause, read.culprit, read.reporter),
            (failure.cause, failure.culprit, failure.reporter));
        prop_assert!(failure.text.starts_with(&read.text));
        // A cut falls between two characters, of at most four bytes.
        let kept = failure.text.len().min(MAX_FAILURE_TEXT - 3);
        prop_assert!(read.text.len() >= kept && read.text.len() <= MAX_FAILURE_TEXT);
    }

    #[test]
    fn any_bytes_are_a_failure_or_none(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        if let Some(failure) = Failure::decode(&bytes) {
            prop_assert!(bytes.len() >= 9 && bytes.len() <= 9 + MAX_FAILURE_TEXT);
            prop_assert_eq!(failure.cause as u8, bytes[0]);
        }
    }
}
