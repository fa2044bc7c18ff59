//! Lines of a text that may be gzipped, numbered from 1.
//!
//! Owns the one buffer a line is read into; promises UTF-8 without the line's end. Must not
//! buffer more than [`LINE_MAX`] bytes, so neither a binary file nor a gzip bomb without
//! line ends fills the memory. Cost: one copy of the text.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::read::MultiGzDecoder;

use super::Complaint;

/// The longest line accepted, in bytes.
pub(super) const LINE_MAX: usize = 4096;

type Source<R> = Chain<Cursor<Vec<u8>>, R>;

enum Input<R: Read> {
    Plain(BufReader<Source<R>>),
    Gzip(Box<BufReader<MultiGzDecoder<Source<R>>>>),
}

/// A source of lines.
pub(crate) struct Lines<R: Read> {
    input: Input<R>,
    line: Vec<u8>,
    number: u64,
}

impl<R: Read> Lines<R> {
    /// Looks at the first two bytes to tell gzip from plain text.
    pub(crate) fn open(mut source: R) -> Result<Lines<R>, Complaint> {
        let mut magic = Vec::new();
        (&mut source).take(2).read_to_end(&mut magic).map_err(|error| unreadable(&error))?;
        let gzip = magic == [0x1f, 0x8b];
        let whole = Cursor::new(magic).chain(source);
        let input = if gzip {
            Input::Gzip(Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(whole))))
        } else {
            Input::Plain(BufReader::with_capacity(1 << 16, whole))
        };
        Ok(Lines { input, line: Vec::new(), number: 0 })
    }

    /// The number of the line read last, or being read when an error came.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The next line, without `\n` or `\r\n`; `None` at the end.
    pub(crate) fn next_line(&mut self) -> Result<Option<&str>, Complaint> {
        self.number += 1;
        self.line.clear();
        let limit = LINE_MAX as u64 + 2;
        let read = match &mut self.input {
            Input::Plain(input) => input.take(limit).read_until(b'\n', &mut self.line),
            Input::Gzip(input) => input.take(limit).read_until(b'\n', &mut self.line),
        };
        if let Err(error) = read {
            return Err(self.broken(&error));
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
        }
        if self.line.len() > LINE_MAX {
            return Err(Complaint::new(
                format!("a line of at most {LINE_MAX} bytes"),
                "a longer one",
            ));
        }
        match std::str::from_utf8(&self.line) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(not_text(&self.line, error.valid_up_to())),
        }
    }

    fn broken(&self, error: &io::Error) -> Complaint {
        match (&self.input, error.kind()) {
            (Input::Gzip(_), io::ErrorKind::UnexpectedEof) => {
                Complaint::new("the rest of the gzip data", "the end of the file")
            }
            (Input::Gzip(_), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                Complaint::new("sound gzip data", format!("\"{error}\""))
            }
            _ => unreadable(error),
        }
    }
}

fn unreadable(error: &io::Error) -> Complaint {
    Complaint::new("readable data", format!("\"{error}\""))
}

fn not_text(line: &[u8], at: usize) -> Complaint {
    let byte = line.get(at).copied().unwrap_or_default();
    Complaint::new("UTF-8 text", format!("byte 0x{byte:02x} at column {}", at + 1))
}
