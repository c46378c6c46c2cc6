//! What goes in comes out, over every wire; and what happens when it can't.

mod rig;

use std::io::Write;

use gradwire_core::{FrameKind, HEADER_BYTES, Header, MAX_PAYLOAD_BYTES};
use gradwire_transport::{Frame, Lane, LaneError, Payload, TcpLane, TcpTuning, tune};
use proptest::prelude::*;
use rig::*;

fn check_transfer(from: &mut dyn Lane, to: &mut dyn Lane, shape: &[(usize, u32)]) {
    let payloads: Vec<Vec<u8>> =
        shape.iter().zip(0..).map(|((bytes, _), sequence)| payload_of(sequence, *bytes)).collect();
    let frames = payloads
        .iter()
        .zip(shape)
        .zip(0..)
        .map(|((payload, (_, tag)), sequence)| frame_of(sequence, *tag, payload))
        .collect();
    let tokens = transfer(from, to, frames, &mut Checker::default());
    assert_eq!(tokens, (0..shape.len() as u64).collect::<Vec<_>>());
}

fn shapes() -> impl Strategy<Value = Vec<(usize, u32)>> {
    let bytes = prop_oneof![
        4 => 0..200usize,
        3 => 0..70_000usize,
        1 => 0..=MAX_PAYLOAD,
        1 => Just(MAX_PAYLOAD),
    ];
    prop::collection::vec((bytes, 0..3u32), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tcp_carries_any_frames(shape in shapes()) {
        let (mut one, mut two) = tcp_pair();
        check_transfer(&mut one, &mut two, &shape);
        check_transfer(&mut two, &mut one, &shape);
    }

    #[test]
    fn shared_memory_carries_any_frames(shape in shapes()) {
        let (mut one, mut two) = shared_pair(MAX_PAYLOAD);
        check_transfer(&mut one, &mut two, &shape);
        check_transfer(&mut two, &mut one, &shape);
    }

    #[test]
    fn small_rings_wrap(shape in prop::collection::vec((0..=3000usize, 0..3u32), 1..200)) {
        let (mut one, mut two) = shared_pair(3000);
        check_transfer(&mut one, &mut two, &shape);
    }
}

proptest! {
    // Each case waits for many acknowledgements.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn tcp_carries_any_frames_through_tiny_buffers(
        shape in prop::collection::vec((0..20_000usize, 0..3u32), 1..12),
    ) {
        let (mut one, mut two) = narrow_tcp_pair();
        check_transfer(&mut one, &mut two, &shape);
    }
}

#[test]
fn a_lane_asks_for_no_more_than_a_little() {
    let (mut one, _two) = narrow_tcp_pair();
    let payload = vec![0; 100];
    let mut accepted = 0u64;
    while one.ready_to_send() {
        one.send(frame_of(accepted, DISCARD, &payload), &mut |_, _| {}).unwrap();
        accepted += 1;
        assert!(accepted < 1000, "an unread connection has no end of room");
    }
    assert!(one.has_unsent());
}

/// Queues `bytes` bytes from memory that goes away while most of them are unsent.
fn abandon_while_sending(from: &mut dyn Lane, to: &mut dyn Lane, frames: u64, bytes: usize) {
    let mut checker = Checker::default();
    let mut tokens = Vec::new();
    for sequence in 0..frames {
        let mut payload = payload_of(sequence, bytes);
        let frame = frame_of(sequence, BORROW, &payload);
        from.send(frame, &mut |token, _| tokens.push(token)).unwrap();
        from.flush(&mut |token, _| tokens.push(token)).unwrap();
        from.abandon(sequence);
        payload.fill(0xee);
    }
    assert!(from.has_unsent(), "the wire took everything, nothing was tested");
    tokens.extend(transfer(from, to, Vec::new(), &mut checker));
    while checker.landed < frames {
        to.receive(&mut checker).unwrap();
        from.flush(&mut |token, _| tokens.push(token)).unwrap();
    }
    assert_eq!(tokens, (0..frames).collect::<Vec<_>>());
}

#[test]
fn tcp_copies_abandoned_frames() {
    let (mut one, mut two) = narrow_tcp_pair();
    abandon_while_sending(&mut one, &mut two, 4, 64 << 10);
}

#[test]
fn shared_memory_copies_abandoned_frames() {
    let (mut one, mut two) = shared_pair(4000);
    abandon_while_sending(&mut one, &mut two, 20, 4000);
}

#[test]
fn tcp_drops_what_arrives_for_abandoned_memory() {
    let (raw, stream) = tcp_streams();
    let mut lane = TcpLane::new(stream, 32).unwrap();
    let (mut raw, bytes) = (raw, 100_000);
    let mut checker = Checker::default();
    raw.write_all(&header_of(0, DIRECT, bytes).encode()).unwrap();
    raw.write_all(&payload_of(0, bytes)[..40_000]).unwrap();
    while lane.receive(&mut checker).unwrap() || checker.arrived == 0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    lane.abandon(0);
    let before = std::mem::take(checker.memory.get_mut(&0).unwrap());
    drop(before);
    raw.write_all(&payload_of(0, bytes)[40_000..]).unwrap();
    raw.write_all(&header_of(1, BORROW, 10).encode()).unwrap();
    raw.write_all(&payload_of(1, 10)).unwrap();
    while checker.arrived < 2 {
        lane.receive(&mut checker).unwrap();
    }
    assert_eq!(checker.landed, 1, "only the second frame is reported");
}

#[test]
fn the_end_comes_after_the_last_frame() {
    let pairs: [(Box<dyn Lane>, Box<dyn Lane>); 2] = {
        let (tcp, shared) = (tcp_pair(), shared_pair(MAX_PAYLOAD));
        [(Box::new(tcp.0), Box::new(tcp.1)), (Box::new(shared.0), Box::new(shared.1))]
    };
    for (mut one, mut two) in pairs {
        let payload = payload_of(0, 1000);
        one.send(frame_of(0, BORROW, &payload), &mut |_, _| {}).unwrap();
        one.flush(&mut |_, _| {}).unwrap();
        one.close();
        drop(one);
        let mut checker = Checker::default();
        assert!(matches!(failure_of(&mut *two, &mut checker), LaneError::Closed));
        assert_eq!(checker.landed, 1);
    }
}

#[test]
fn a_peer_that_leaves_in_mid_frame_has_closed() {
    let (mut raw, stream) = tcp_streams();
    let mut lane = TcpLane::new(stream, 32).unwrap();
    raw.write_all(&header_of(0, DIRECT, 1000).encode()).unwrap();
    raw.write_all(&[0; 500]).unwrap();
    drop(raw);
    let mut checker = Checker::default();
    assert!(matches!(failure_of(&mut lane, &mut checker), LaneError::Closed));
    assert_eq!((checker.arrived, checker.landed), (1, 0));
}

#[test]
fn writing_to_a_reset_connection_is_an_error() {
    let (mut one, two) = tcp_pair();
    drop(two);
    let payload = vec![0; 1 << 16];
    let error = (0..100).find_map(|sequence| {
        let sent = one.send(frame_of(sequence, DISCARD, &payload), &mut |_, _| {});
        sent.and_then(|()| one.flush(&mut |_, _| {})).err()
    });
    assert!(matches!(error, Some(LaneError::Io(_))), "{error:?}");
}

#[test]
fn malformed_headers_are_refused() {
    let good = Header::new(FrameKind::Ping).encode();
    let mut kind = good;
    kind[0] = 99;
    let mut version = good;
    version[1] = 77;
    let mut reserved = good;
    reserved[7] = 1;
    let mut payload = good;
    payload[8..12].copy_from_slice(&(MAX_PAYLOAD_BYTES + 1).to_le_bytes());
    for header in [kind, version, reserved, payload] {
        let (mut raw, stream) = tcp_streams();
        let mut lane = TcpLane::new(stream, 32).unwrap();
        raw.write_all(&header).unwrap();
        let error = failure_of(&mut lane, &mut Checker::default());
        assert!(matches!(error, LaneError::Header(_)), "{error:?}");
        let (mut one, mut two) = shared_pair(4096);
        send_raw(&mut one, header);
        let error = failure_of(&mut two, &mut Checker::default());
        assert!(matches!(error, LaneError::Header(_)), "{error:?}");
    }
}

fn send_raw(lane: &mut dyn Lane, header: [u8; HEADER_BYTES]) {
    let frame = Frame { header, payload: Payload::Empty, operation: 0, token: 0 };
    lane.send(frame, &mut |_, _| {}).unwrap();
}

#[test]
fn a_refused_frame_ends_the_lane() {
    let (mut one, mut two) = tcp_pair();
    let (mut three, mut four) = shared_pair(4096);
    let pairs: [(&mut dyn Lane, &mut dyn Lane); 2] =
        [(&mut one, &mut two), (&mut three, &mut four)];
    for (from, to) in pairs {
        for sequence in 0..3 {
            from.send(frame_of(sequence, BORROW, &[]), &mut |_, _| {}).unwrap();
        }
        from.flush(&mut |_, _| {}).unwrap();
        let mut checker = Checker { refuse: Some(1), ..Checker::default() };
        let error = failure_of(to, &mut checker);
        assert_eq!(error.to_string(), "protocol violation: refused by the test");
        assert_eq!((checker.arrived, checker.landed), (1, 1));
    }
}

#[test]
fn tuning_names_what_it_can_not_set() {
    let (stream, _peer) = tcp_streams();
    let tuning = TcpTuning { congestion_control: Some("warp".into()), ..TcpTuning::default() };
    let text = tune(&stream, &tuning).unwrap_err().to_string();
    assert!(text.contains("\"warp\"") && text.contains("this host offers: "), "{text}");
}
