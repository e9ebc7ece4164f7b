//! Bodies: of answers that are ready, of answers that Python gives, and of requests that go on to Python.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use hyper::HeaderMap;
use hyper::body::Incoming;
use hyper::header::HeaderValue;

/// The body of a response.
pub enum Reply {
    /// A message, and then the trailers of a call that went well.
    Message(Bytes),
    Trailers,
    /// Nothing more to come.
    Nothing,
    Forwarded(Incoming),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Reply::Message(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Reply::Trailers;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Reply::Trailers => {
                *self = Reply::Nothing;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Reply::Nothing => Poll::Ready(None),
            Reply::Forwarded(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Message(_) | Reply::Trailers => false,
            Reply::Nothing => true,
            Reply::Forwarded(body) => body.is_end_stream(),
        }
    }
}

/// The body of a request: what was received of it, and what is still to come.
pub struct Request {
    pub received: Bytes,
    pub rest: Incoming,
}

impl Body for Request {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.received.is_empty() {
            Pin::new(&mut self.rest).poll_frame(context)
        } else {
            Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.received)))))
        }
    }

    fn is_end_stream(&self) -> bool {
        self.received.is_empty() && self.rest.is_end_stream()
    }
}

/// What there is of a request.
pub enum Received {
    Whole(Bytes),
    /// More than was to be waited for.
    Part(Bytes),
}

/// Receive a request to its end, but hardly more of it than `most` bytes.
pub async fn receive(body: &mut Incoming, most: usize) -> Result<Received, hyper::Error> {
    let mut first = Bytes::new(); // nearly always the only one, so nothing is copied
    let mut all = BytesMut::new();
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let Some(frame) = frame.await.transpose()? else {
            return Ok(Received::Whole(if all.is_empty() { first } else { all.freeze() }));
        };
        let Ok(data) = frame.into_data() else {
            continue; // trailers, which no client of gRPC sends
        };
        if first.is_empty() {
            first = data;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&data);
        }
        if first.len().max(all.len()) > most {
            return Ok(Received::Part(if all.is_empty() { first } else { all.freeze() }));
        }
    }
}
