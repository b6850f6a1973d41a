//! Servers that treat requests in good and bad manners.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use super::{LABELS, LIMITS, content};

/// How a server treats requests for the images.
#[derive(Clone, Debug)]
pub enum Manner {
    Whole,
    Drips,
    Stalls,
    NeverAnswers,
    CutsOff,
    EndsEarly,
    GoesOn,
    NeverEnds,
    AnnouncesMore,
    OtherBytes,
    Status(u16),
    /// To another folder, at this server or elsewhere.
    RedirectsTo(String),
    NoHttp,
}

/// A server on this machine, and the names it is asked for.
pub struct Server {
    pub address: String,
    pub requests: Receiver<String>,
}

impl Server {
    /// Answers requests for the labels as it should, and for the images in its `manner`.
    pub fn new(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}/files", listener.local_addr().expect("an address"));
        let (sender, requests) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (manner, sender) = (manner.clone(), sender.clone());
                thread::spawn(move || {
                    let name = requested(&stream);
                    let manner = if name == LABELS { Manner::Whole } else { manner };
                    let _ = sender.send(name.clone());
                    // The client may close the connection early.
                    let _ = answer(stream, &manner, &name);
                });
            }
        });
        Self { address, requests }
    }

    pub fn was_asked_for(&self, name: &str) -> bool {
        self.requests.try_iter().any(|request| request == name)
    }
}

fn requested(mut stream: &TcpStream) -> String {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        request.push(byte[0]);
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

fn answer(mut stream: TcpStream, manner: &Manner, name: &str) -> std::io::Result<()> {
    let bytes = content(name);
    let size = bytes.len();
    // The length that the server announces, if it does, and what it sends.
    let (announced, body) = match manner {
        Manner::Whole | Manner::Drips => (Some(size), bytes),
        Manner::Stalls | Manner::CutsOff => (Some(size), bytes[..1000].to_vec()),
        Manner::EndsEarly => (None, bytes[..1000].to_vec()),
        Manner::GoesOn | Manner::NeverEnds => (None, [&bytes[..], b"!"].concat()),
        Manner::AnnouncesMore => (Some(size + 1), [&bytes[..], b"!"].concat()),
        Manner::OtherBytes => (Some(size), [&bytes[1..], b"!"].concat()),
        Manner::NeverAnswers => {
            thread::sleep(Duration::from_secs(60));
            return Ok(());
        }
        Manner::NoHttp => return stream.write_all(b"220 smtp.example ready\r\n"),
        Manner::Status(status) => {
            return write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
        }
        Manner::RedirectsTo(folder) => {
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {folder}/{name}\r\nContent-Length: 0\r\n\
                 Connection: close\r\n\r\n"
            );
        }
    };
    let length = announced.map(|length| format!("Content-Length: {length}\r\n"));
    let length = length.unwrap_or_default();
    write!(stream, "HTTP/1.1 200 OK\r\n{length}Connection: close\r\n\r\n")?;
    // In all a slow server takes twice the time that may pass in silence.
    let pause = if matches!(manner, Manner::Drips) { LIMITS.silence / 10 } else { Duration::ZERO };
    for part in body.chunks(body.len().div_ceil(20)) {
        thread::sleep(pause);
        stream.write_all(part)?;
    }
    match manner {
        Manner::NeverEnds => loop {
            stream.write_all(&body)?;
        },
        Manner::Stalls => thread::sleep(Duration::from_secs(60)),
        _ => {}
    }
    Ok(())
}
