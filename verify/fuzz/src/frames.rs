//! Frames of a connection, however the network cuts them.

use crate::words::Words;
use polycast_net::frames::{FrameError, FrameStream};
use polycast_wire::control::{Control, FRAME_LEN_MAX};
use std::cell::RefCell;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

thread_local! {
    /// A listener for all runs, so that each costs one connection.
    static LISTENER: RefCell<Option<TcpListener>> = const { RefCell::new(None) };
}

fn connection() -> (TcpStream, TcpStream) {
    LISTENER.with_borrow_mut(|listener| {
        let listener =
            listener.get_or_insert_with(|| TcpListener::bind("127.0.0.1:0").expect("a port of this host"));
        let one = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (other, _) = listener.accept().expect("one connects");
        // Ends without waiting, so that ports do not run out.
        rustix::net::sockopt::set_socket_linger(&one, Some(std::time::Duration::ZERO)).expect("a socket");
        (one, other)
    })
}

/// Reads bytes that come in pieces of these lengths; returns the frames, and whether the connection is of
/// another language.
fn read(bytes: &[u8], lens: impl Iterator<Item = usize>) -> (Vec<Vec<u8>>, bool) {
    let (mut writer, reader) = connection();
    let mut stream = FrameStream::new(reader).expect("a socket");
    let (mut left, mut frames) = (bytes, Vec::new());
    for len in lens.chain(std::iter::repeat(bytes.len().max(1))) {
        let (piece, rest) = left.split_at(len.min(left.len()));
        writer.write_all(piece).expect("the other end reads");
        left = rest;
        loop {
            match stream.fill() {
                Ok(true) => {}
                Ok(false) => break,
                Err(FrameError::Wire(_)) => return (frames, true),
                Err(error) => panic!("the connection broke: {error}"),
            }
            loop {
                match stream.next_frame() {
                    Ok(Some(control)) => {
                        let mut frame = Vec::new();
                        control.emit(&mut frame);
                        frames.push(frame);
                    }
                    Ok(None) => break,
                    Err(_) => return (frames, true),
                }
            }
        }
        if left.is_empty() {
            break;
        }
    }
    (frames, false)
}

/// Frames are the same however they are cut, and are those that are in the bytes.
pub fn frame_stream(bytes: &[u8]) {
    let (cuts, bytes) = bytes.split_at(bytes.len().min(8));
    let mut words = Words::new(cuts);
    let lens: Vec<usize> = (0..4).map(|_| 1 + words.below(40) as usize).collect();
    let whole = read(bytes, std::iter::empty());
    assert_eq!(whole, read(bytes, lens.into_iter()));
    let mut left = bytes;
    for frame in &whole.0 {
        assert!(left.starts_with(frame) && frame.len() <= FRAME_LEN_MAX + 4);
        left = &left[frame.len()..];
    }
    // What follows is the beginning of a frame, or no frame.
    let broken = match Control::frame_len(left) {
        Ok(Some(len)) => left.get(..len).is_some_and(|frame| Control::parse(frame).is_err()),
        Ok(None) => false,
        Err(_) => true,
    };
    assert_eq!(whole.1, broken, "{left:?}");
}
