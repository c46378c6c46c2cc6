use proptest::prelude::*;

use super::*;

fn secret() -> Secret {
    Secret::new([7; 32])
}

fn hello() -> Hello {
    Hello {
        initiator: 1,
        acceptor: 2,
        world_size: 4,
        session: 0x1122_3344_5566_7788,
        attempt: u64::MAX - 5,
        lane: 3,
        lanes: 4,
        wire: Wire::SharedMemory,
        host: "node-1".to_owned(),
    }
}

/// The three messages that a dialogue has up to and including number `last` (1 to 4), where
/// `tamper` may change each of them on its way.
struct Dialogue {
    initiator: Initiator,
    acceptor: Acceptor,
    messages: Vec<Vec<u8>>,
}

/// What each side has come to when the dialogue stops.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    BothEstablished,
    AcceptorError(HandshakeError),
    InitiatorError(HandshakeError),
    /// Somebody waits for more bytes.
    Stalled,
}

impl Dialogue {
    fn new(initiator: &Secret, acceptor: &Secret) -> Self {
        Dialogue {
            initiator: Initiator::new(initiator, &hello()),
            acceptor: Acceptor::new(acceptor),
            messages: Vec::new(),
        }
    }

    fn run(&mut self, mut tamper: impl FnMut(usize, Vec<u8>) -> Vec<u8>) -> Outcome {
        for round in 0.. {
            let original = self.initiator.take_outgoing();
            self.messages.push(original.clone());
            match feed_acceptor(&mut self.acceptor, &tamper(2 * round + 1, original)) {
                Ok(Progress::Introduced(_)) => self.acceptor.welcome(&Ok(())),
                Ok(Progress::Confirmed) => self.acceptor.verdict(&Ok(())),
                Ok(_) => return Outcome::Stalled,
                Err(error) => return Outcome::AcceptorError(error),
            }
            let original = self.acceptor.take_outgoing();
            self.messages.push(original.clone());
            match feed_initiator(&mut self.initiator, &tamper(2 * round + 2, original)) {
                Ok(Progress::Confirmed) => {}
                Ok(Progress::Established) => return Outcome::BothEstablished,
                Ok(_) => return Outcome::Stalled,
                Err(error) => return Outcome::InitiatorError(error),
            }
        }
        unreachable!("the loop only ends by return")
    }
}

fn feed_acceptor(acceptor: &mut Acceptor, mut bytes: &[u8]) -> Result<Progress, HandshakeError> {
    let mut progress = Progress::Incomplete;
    while !bytes.is_empty() && progress == Progress::Incomplete {
        let (now, rest) = bytes.split_at(acceptor.wanted().min(bytes.len()));
        progress = acceptor.received(now)?;
        bytes = rest;
    }
    Ok(progress)
}

fn feed_initiator(initiator: &mut Initiator, mut bytes: &[u8]) -> Result<Progress, HandshakeError> {
    let mut progress = Progress::Incomplete;
    while !bytes.is_empty() && progress == Progress::Incomplete {
        let (now, rest) = bytes.split_at(initiator.wanted().min(bytes.len()));
        progress = initiator.received(now)?;
        bytes = rest;
    }
    Ok(progress)
}

fn unchanged(_: usize, message: Vec<u8>) -> Vec<u8> {
    message
}

#[test]
fn the_same_secret_on_both_sides_establishes_a_connection() {
    let mut dialogue = Dialogue::new(&secret(), &secret());
    assert_eq!(dialogue.run(unchanged), Outcome::BothEstablished);
    let from_initiator = dialogue.messages[0].len() + dialogue.messages[2].len();
    assert!(from_initiator <= 512, "an acceptor reads {from_initiator} bytes");
    assert!(dialogue.messages.iter().all(|message| message.len() <= 8 + MAX_MESSAGE_BYTES));
}

#[test]
fn bytes_may_come_one_by_one() {
    let mut initiator = Initiator::new(&secret(), &hello());
    let mut acceptor = Acceptor::new(&secret());
    let mut last = Progress::Incomplete;
    for byte in initiator.take_outgoing() {
        assert_eq!(last, Progress::Incomplete);
        last = acceptor.received(&[byte]).unwrap();
    }
    assert_eq!(last, Progress::Introduced(hello()));
}

#[test]
fn another_secret_is_refused_and_told() {
    let mut dialogue = Dialogue::new(&Secret::new([8; 32]), &secret());
    assert_eq!(dialogue.run(unchanged), Outcome::AcceptorError(HandshakeError::Unauthenticated));
    let refusal = dialogue.acceptor.take_outgoing();
    let error = feed_initiator(&mut dialogue.initiator, &refusal).unwrap_err();
    assert_eq!(error, HandshakeError::OtherSecret);
}

#[test]
fn another_version_is_refused_and_told() {
    let mut dialogue = Dialogue::new(&secret(), &secret());
    let outcome = dialogue.run(|_, mut message| {
        message[PREFACE.len() - 1] = 99;
        message
    });
    let error = HandshakeError::OtherVersion { theirs: 99 };
    assert_eq!(outcome, Outcome::AcceptorError(error));
    let refusal = dialogue.acceptor.take_outgoing();
    let error = feed_initiator(&mut dialogue.initiator, &refusal).unwrap_err();
    assert_eq!(error, HandshakeError::OtherVersion { theirs: WIRE_VERSION });
}

#[test]
fn a_rejection_reaches_the_initiator() {
    for late in [false, true] {
        let rejection =
            Rejection { kind: RejectionKind::Superseded, reason: "ü".repeat(REPLY_BYTES) };
        let mut initiator = Initiator::new(&secret(), &hello());
        let mut acceptor = Acceptor::new(&secret());
        feed_acceptor(&mut acceptor, &initiator.take_outgoing()).unwrap();
        if late {
            acceptor.welcome(&Ok(()));
            feed_initiator(&mut initiator, &acceptor.take_outgoing()).unwrap();
            feed_acceptor(&mut acceptor, &initiator.take_outgoing()).unwrap();
            acceptor.verdict(&Err(rejection));
        } else {
            acceptor.welcome(&Err(rejection));
        }
        let error = feed_initiator(&mut initiator, &acceptor.take_outgoing()).unwrap_err();
        let HandshakeError::Rejected(received) = error else { panic!("{error}") };
        assert_eq!(received.kind, RejectionKind::Superseded);
        assert_eq!(received.reason, "ü".repeat((REPLY_BYTES - 2) / 2));
    }
}

#[test]
fn replayed_messages_do_not_authenticate() {
    let mut recorded = Dialogue::new(&secret(), &secret());
    recorded.run(unchanged);
    let mut acceptor = Acceptor::new(&secret());
    let introduced = feed_acceptor(&mut acceptor, &recorded.messages[0]).unwrap();
    assert!(matches!(introduced, Progress::Introduced(_)));
    acceptor.welcome(&Ok(()));
    let error = feed_acceptor(&mut acceptor, &recorded.messages[2]).unwrap_err();
    assert_eq!(error, HandshakeError::Unauthenticated);

    let mut initiator = Initiator::new(&secret(), &hello());
    let error = feed_initiator(&mut initiator, &recorded.messages[1]).unwrap_err();
    assert_eq!(error, HandshakeError::Unauthenticated);
}

#[test]
fn a_truncated_message_stalls() {
    for number in 1..=4 {
        for cut in 1..20 {
            let mut dialogue = Dialogue::new(&secret(), &secret());
            let outcome = dialogue.run(|at, mut message| {
                if at == number {
                    message.truncate(message.len() - cut);
                }
                message
            });
            assert_eq!(outcome, Outcome::Stalled);
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut reference = Dialogue::new(&secret(), &secret());
    reference.run(unchanged);
    let lengths: Vec<usize> = reference.messages.iter().map(Vec::len).collect();
    for (index, length) in lengths.into_iter().enumerate() {
        for bit in 0..8 * length {
            let mut dialogue = Dialogue::new(&secret(), &secret());
            let outcome = dialogue.run(|at, mut message| {
                if at == index + 1 {
                    message[bit / 8] ^= 1 << (bit % 8);
                }
                message
            });
            assert_ne!(outcome, Outcome::BothEstablished, "message {}, bit {bit}", index + 1);
        }
    }
}

#[test]
fn the_secret_is_not_shown() {
    assert_eq!(format!("{:?}", Secret::new([42; 32])), "Secret(redacted)");
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = feed_acceptor(&mut Acceptor::new(&secret()), &bytes);
        let _ = feed_initiator(&mut Initiator::new(&secret(), &hello()), &bytes);
        let mut prefaced = PREFACE.to_vec();
        prefaced.extend((HELLO_MESSAGE_BYTES as u16).to_le_bytes());
        prefaced.extend(&bytes);
        let outcome = feed_acceptor(&mut Acceptor::new(&secret()), &prefaced);
        prop_assert!(matches!(outcome, Err(_) | Ok(Progress::Incomplete)));
    }

    #[test]
    fn hellos_survive_their_encoding(
        initiator: u32, acceptor: u32, world_size: u32, session: u64, attempt: u64, lane: u16,
        lanes: u16, shared: bool, host in "[a-zé-]{0,32}",
    ) {
        let wire = if shared { Wire::SharedMemory } else { Wire::Tcp };
        let there =
            Hello { initiator, acceptor, world_size, session, attempt, lane, lanes, wire, host };
        prop_assert_eq!(Hello::decode(&there.encode()), Some(there));
    }

    #[test]
    fn any_decoded_hello_is_bounded(bytes in any::<[u8; 32]>(), tail in any::<[u8; 32]>()) {
        let mut hello = [0; HELLO_BYTES];
        hello[..32].copy_from_slice(&bytes);
        hello[32..64].copy_from_slice(&tail);
        if let Some(hello) = Hello::decode(&hello) {
            prop_assert!(hello.host.len() <= MAX_HOST_BYTES);
        }
    }
}
