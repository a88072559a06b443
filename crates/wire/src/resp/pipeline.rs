//! The commands found in one buffer, as places in it: no bytes are copied, nothing is allocated for each.
//!
//! ```text
//!   buffer  *2\r\n$4\r\nINCR\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n
//!                       ^^^^         ^                   ^^^^
//!   spans                0           1                    2        arguments of all commands in one row
//!   ends                             2                    3        where each command's arguments end in that row
//! ```
//!
//! Reading and running are two passes: once decoded, every argument can be borrowed from the buffer at the same time,
//! so a batch of operations needs no copies of its keys.

/// Places kept allocated between calls. A pipeline of ordinary depth fits; a giant command gives its memory back.
const RETAINED_SPANS: usize = 16 * 1024;

/// Where one argument lies in the buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// The decoder looks at less than 4 GiB of a buffer, so nothing is cut off.
    #[inline]
    pub(super) fn new(start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Span { start: start as u32, end: end as u32 }
    }

    /// The same place, counted from `offset`, which is not after it.
    pub(super) fn counted_from(self, offset: usize) -> Span {
        Span::new(self.start as usize - offset, self.end as usize - offset)
    }
}

/// The complete commands one call of [`super::Decoder::decode`] found.
#[derive(Debug, Default)]
pub struct Pipeline {
    /// Arguments of all commands, one after the other.
    pub(super) spans: Vec<Span>,
    /// For each command, where its arguments end in `spans`.
    ends: Vec<u32>,
}

impl Pipeline {
    /// An empty pipeline; it allocates when used.
    pub fn new() -> Pipeline {
        Pipeline::default()
    }

    /// How many commands there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no command.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The commands in the order sent. `buffer` is the one they were found in, unmoved.
    pub fn commands<'s, 'b>(&'s self, buffer: &'b [u8]) -> impl ExactSizeIterator<Item = Arguments<'s, 'b>> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let spans = &self.spans[start..end as usize];
            start = end as usize;
            Arguments { spans, buffer }
        })
    }

    pub(super) fn clear(&mut self) {
        self.spans.clear();
        self.spans.shrink_to(RETAINED_SPANS);
        self.ends.clear();
        self.ends.shrink_to(RETAINED_SPANS);
    }

    /// Ends the current command, unless it has no arguments: `*0` and blank lines are nothing.
    #[inline]
    pub(super) fn finish_command(&mut self) {
        let end = self.spans.len() as u32;
        if end > self.ends.last().copied().unwrap_or(0) {
            self.ends.push(end);
        }
    }
}

/// One command: its name and what follows. There is always a name, possibly empty.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'s, 'b> {
    spans: &'s [Span],
    buffer: &'b [u8],
}

impl<'s, 'b> Arguments<'s, 'b> {
    /// How many arguments, the name included: what arity counts.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether nothing is left, as can be true of a [`Self::tail`].
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The name as sent, in whatever case.
    #[inline]
    pub fn name(&self) -> &'b [u8] {
        self.get(0).unwrap_or_default()
    }

    /// The argument at `index`; the name is at 0.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'b [u8]> {
        self.spans.get(index).map(|span| resolve(*span, self.buffer))
    }

    /// The first `N` arguments, for taking apart in one pattern: `let Some([_, key, delta]) = arguments.first()`.
    #[inline]
    pub fn first<const N: usize>(&self) -> Option<[&'b [u8]; N]> {
        let spans: &[Span; N] = self.spans.first_chunk()?;
        Some(spans.map(|span| resolve(span, self.buffer)))
    }

    /// The arguments from `index` on; none when there are not so many.
    #[inline]
    pub fn tail(&self, index: usize) -> Arguments<'s, 'b> {
        Arguments { spans: self.spans.get(index..).unwrap_or_default(), buffer: self.buffer }
    }

    /// All arguments in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'b [u8]> + use<'s, 'b> {
        let buffer = self.buffer;
        self.spans.iter().map(move |span| resolve(*span, buffer))
    }
}

#[inline]
fn resolve(span: Span, buffer: &[u8]) -> &[u8] {
    let argument = buffer.get(span.start as usize..span.end as usize);
    debug_assert!(argument.is_some(), "a pipeline is read with the buffer it was decoded from");
    argument.unwrap_or_default()
}
