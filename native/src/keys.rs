//! What of a request decides its answer. Whatever is not plain has no key: Python reads it, and decides.

/// The message of a request that has arrived whole: one, uncompressed, and nothing behind it.
pub fn message(received: &[u8]) -> Option<&[u8]> {
    let (head, rest) = received.split_at_checked(5)?;
    let length = u32::from_be_bytes(head[1..].try_into().ok()?);
    (head[0] == 0 && rest.len() == length as usize).then_some(rest)
}

/// The `providerID`, or else the name, of the `ExternalGrpcNode` that is a request's only field.
pub fn node(message: &[u8]) -> Option<&[u8]> {
    let mut fields = Fields(message);
    let (1, node) = fields.next()?? else {
        return None;
    };
    if fields.next().is_some() {
        return None;
    }
    let (mut id, mut name): (&[u8], &[u8]) = (&[], &[]);
    for field in Fields(node) {
        match field? {
            (1, value) => id = value,
            (2, value) => name = value,
            (3 | 4, entry) => {
                // A label or an annotation: Python would refuse one that is malformed.
                for field in Fields(entry) {
                    let (1 | 2, text) = field? else {
                        return None;
                    };
                    std::str::from_utf8(text).ok()?;
                }
            }
            _ => return None,
        }
    }
    std::str::from_utf8(name).ok()?;
    std::str::from_utf8(id).ok()?;
    Some(if id.is_empty() { name } else { id })
}

/// The length-delimited fields of a message, by number; `None` for anything else, and that is the last.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, &'a [u8])> {
        let tag = self.varint()?;
        if tag & 7 != 2 {
            return None;
        }
        let length = usize::try_from(self.varint()?).ok()?;
        let (value, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}
