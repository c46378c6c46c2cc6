//! File descriptors over a Unix socket (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors have to travel with at least one byte.
const CARRIER: u8 = b'D';

/// Sends descriptors; the socket's buffer must have room.
pub(super) fn send(socket: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(socket, &[IoSlice::new(&[CARRIER])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives exactly `N` (at most 2) descriptors; `None` when nothing has arrived yet.
pub(super) fn receive<const N: usize>(socket: impl AsFd) -> io::Result<Option<[OwnedFd; N]>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut carrier = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match recvmsg(socket, &mut [IoSliceMut::new(&mut carrier)], &mut control, flags) {
        Ok(message) => message,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if message.bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed by the peer"));
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let count = descriptors.len();
    descriptors.try_into().map(Some).map_err(|_| {
        let text = format!("{count} descriptors arrived, expected {N}");
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}
