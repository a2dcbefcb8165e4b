/* The structs that Finagle's clients and servers put in front of thrift's messages, as far as their fields go. */

struct ClientId {
  1: string name
}

struct RequestContext {
  1: binary key
  2: binary value
}

struct Delegation {
  1: string src
  2: string dst
}

struct RequestHeader {
  1: i64 trace_id
  2: i64 span_id
  3: optional i64 parent_span_id
  5: optional bool sampled
  6: optional ClientId client_id
  7: optional i64 flags
  8: list<RequestContext> contexts
  9: optional string dest
  10: optional list<Delegation> delegations
  11: optional i64 trace_id_high
}

struct ResponseHeader {
  1: list<RequestContext> spans
  2: list<RequestContext> contexts
}
