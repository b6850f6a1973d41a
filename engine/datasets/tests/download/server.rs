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
    RedirectsTo(String),
    RedirectsToItself,
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
    let announce = |stream: &mut TcpStream, length: usize| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
    };
    let no_length = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    match manner {
        Manner::Whole => {
            announce(&mut stream, bytes.len())?;
            stream.write_all(&bytes)
        }
        Manner::Drips => {
            announce(&mut stream, bytes.len())?;
            // In all it takes twice the time that may pass in silence.
            for part in bytes.chunks(bytes.len().div_ceil(20)) {
                thread::sleep(LIMITS.silence / 10);
                stream.write_all(part)?;
            }
            Ok(())
        }
        Manner::Stalls => {
            announce(&mut stream, bytes.len())?;
            stream.write_all(&bytes[..1000])?;
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        Manner::NeverAnswers => {
            thread::sleep(Duration::from_secs(60));
            Ok(())
        }
        Manner::CutsOff => {
            announce(&mut stream, bytes.len())?;
            stream.write_all(&bytes[..1000])
        }
        Manner::EndsEarly => {
            stream.write_all(no_length.as_bytes())?;
            stream.write_all(&bytes[..1000])
        }
        Manner::GoesOn => {
            stream.write_all(no_length.as_bytes())?;
            stream.write_all(&bytes)?;
            stream.write_all(b"!")
        }
        Manner::NeverEnds => {
            stream.write_all(no_length.as_bytes())?;
            loop {
                stream.write_all(&bytes)?;
            }
        }
        Manner::AnnouncesMore => {
            announce(&mut stream, bytes.len() + 1)?;
            stream.write_all(&bytes)?;
            stream.write_all(b"!")
        }
        Manner::OtherBytes => {
            announce(&mut stream, bytes.len())?;
            stream.write_all(&bytes[1..])?;
            stream.write_all(b"!")
        }
        Manner::Status(status) => {
            write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        }
        Manner::RedirectsTo(address) => write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: {address}/{name}\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n"
        ),
        Manner::RedirectsToItself => write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: /files/{name}\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n"
        ),
        Manner::NoHttp => stream.write_all(b"220 smtp.example ready\r\n"),
    }
}
