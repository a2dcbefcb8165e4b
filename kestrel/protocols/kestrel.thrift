/*
 * Kestrel's thrift service. Framed transport, binary protocol (strict or not), port 2229 unless configured otherwise.
 *
 * Names, numbers and types are those of Twitter's Kestrel, so clients generated from its IDL work as they are.
 *
 * The requests of one connection are answered in their order. What the server refuses is answered with a
 * TApplicationException, whose message says why:
 *   6 (INTERNAL_ERROR)        refused: the server's status, a limit, a list of clients, a name, a disk that failed
 *   1 (UNKNOWN_METHOD)        no method of this service
 *   2 (INVALID_MESSAGE_TYPE)  the message is no call; there are no oneway methods
 *   7 (PROTOCOL_ERROR)        the message cannot be read, or an argument without a default is missing
 */

namespace java net.lag.kestrel.thrift
#@namespace scala net.lag.kestrel.thriftscala

// Not the file's own name, which Python knows as the server's package.
namespace py kestrel_thrift

/* One item, as get returns it. */
struct Item {
  /* What was put. */
  1: binary data

  /* What confirm and abort want to be given; 0 if the item is gone from the queue for good. */
  2: i64 id
}

/* A queue at a glance; all zeros for an alias and for a queue that does not exist. */
struct QueueInfo {
  /* The data of the next item, if there is one. */
  1: optional binary head_item

  /* How many items wait in the queue; open reads do not count. */
  2: i64 items

  /* The bytes of their data. */
  3: i64 bytes

  /* The bytes of the queue's journal files. */
  4: i64 journal_bytes

  /* For how many milliseconds the next item has been in the queue; 0 without one. */
  5: i64 age

  /* How many clients wait for an item. */
  6: i32 waiters

  /* How many items were handed out and are neither confirmed nor aborted yet. */
  7: i32 open_transactions
}

/* What the server takes from clients. */
enum Status {
  /* Told for a status that has no number here (WriteAvoid, or down while the server stops). It cannot be set. */
  NOT_CONFIGURED = 0,

  /* Neither reads nor writes; what was handed out before can still be confirmed and aborted. */
  QUIESCENT = 1,

  /* Reads, but no writes: nothing is put, flushed or deleted. */
  READ_ONLY = 2,

  /* Everything. */
  UP = 3,
}

/*
 * What follows about ranges is this server's own; an original Kestrel answers UNKNOWN_METHOD.
 *
 * Where a queue's storage gives its items durable ids (scrolls do), one reader at a time can read them by these ids: the
 * same answer every time, until it says that it is done with them.
 */

/* One item, as read_range returns it. */
struct RangeItem {
  /* Its id. Ids rise, there may be gaps, and none is ever given twice. */
  1: i64 id

  /* What was put. */
  2: binary data

  /* When it was put, in milliseconds since 1970. */
  3: i64 add_time

  /* When it expires, in milliseconds since 1970; 0 for never. */
  4: i64 expiry
}

/* How far a reader is. */
struct RangeState {
  /* The lowest id that it has not released. */
  1: i64 first_id

  /* The id of the next item that becomes safe: all items below are. */
  2: i64 next_id

  /* Where the batch ends that open_range was asked for. */
  3: i64 end_id
}

/*
 * A range that there is not: the queue's storage has no ids, another reader has the queue, items of it were released, or
 * it reaches beyond the last item. The same request will fail again.
 */
exception RangeRefused {
  1: string reason
}

service Kestrel {
  /*
   * Append items to a queue, which is made if it does not exist. Returns how many went in: at the first item that
   * the queue refuses (a limit of items, bytes or item size) the put ends, so these are the first ones.
   *
   * expiration_msec: from now; an item that is still there then is discarded, or moved where the queue is set to.
   * 0: never. Negative: it has expired already.
   *
   * If an item is larger than any request may bring, or there are more items than one call may bring, the answer is
   * an exception and nothing is put.
   */
  i32 put(1: string queue_name, 2: list<binary> items, 3: i32 expiration_msec = 0)

  /*
   * Take up to max_items from the head of a queue. A negative max_items takes as many as one reply can hold.
   *
   * timeout_msec: 0, what is there is returned at once. Else the call returns when it has max_items, or with what it
   * has (perhaps nothing) when the time is up.
   *
   * auto_abort_msec: 0, the items are gone from the queue for good and their ids are 0. Else each is an open read:
   * it must be confirmed within this time by its id, by this connection or another, or it goes back to the head of
   * the queue, as if it had been aborted.
   *
   * A connection that holds as many open reads of the queue as the server allows gets no more of them until it
   * confirms or aborts some.
   */
  list<Item> get(1: string queue_name, 2: i32 max_items, 3: i32 timeout_msec = 0, 4: i32 auto_abort_msec = 0)

  /*
   * Finish open reads: the items are done with. Returns how many there were; ids that are not open (any more), or
   * belong to another queue, are passed over.
   */
  i32 confirm(1: string queue_name, 2: set<i64> ids)

  /*
   * Give open reads back: the items go to the head of the queue. Returns how many there were; other ids are passed
   * over.
   */
  i32 abort(1: string queue_name, 2: set<i64> ids)

  /*
   * Look at a queue and its next item and take nothing. The item may be gone when the answer arrives.
   */
  QueueInfo peek(1: string queue_name)

  /*
   * Drop all items of a queue. Open reads stay open.
   */
  void flush_queue(1: string queue_name)

  /*
   * Drop all items of every queue. Open reads stay open.
   */
  void flush_all_queues()

  /*
   * Forget a queue, with its items, open reads and files.
   */
  void delete_queue(1: string queue_name)

  /*
   * The status that the server advertises.
   */
  Status current_status()

  /*
   * Change the server's status.
   */
  void set_status(1: Status status)

  /*
   * Which release of the server answers.
   */
  string get_version()

  /*
   * Have a queue's items kept for a reader, from the first that is in the queue now, and learn where it is. The queue
   * is made if it does not exist. Until they are released, these items can be read by their ids, also those that other
   * clients take, that expire, or that are dropped by a limit or a flush. It may be called at any time and as often as
   * one likes.
   *
   * reader: whose they are, 1 to 255 bytes; one for a queue at a time. It outlives connections and the server.
   *
   * end_id of the answer: where a batch ends that begins at first_id (0: the first that is not released) and has no more
   * than max_items (0: all that there are). first_id lies between the answer's own first_id and next_id.
   */
  RangeState open_range(1: string queue_name, 2: string reader, 3: i64 first_id = 0, 4: i32 max_items = 0)
    throws (1: RangeRefused refused)

  /*
   * The items from first_id on and below end_id, in order; no open reads, and nothing is taken.
   *
   * Of more than max_bytes (0: what one reply can hold) the first ones, one at least: go on behind the last. An answer
   * without items: there are none.
   */
  list<RangeItem> read_range(1: string queue_name, 2: string reader, 3: i64 first_id, 4: i64 end_id, 5: i32 max_bytes = 0)
    throws (1: RangeRefused refused)

  /*
   * All below end_id is done, for this reader and for everybody else: these items leave the queue.
   */
  RangeState release_range(1: string queue_name, 2: string reader, 3: i64 end_id) throws (1: RangeRefused refused)

  /*
   * Nothing is kept for the reader any more. What is still in the queue stays there.
   */
  void close_range(1: string queue_name, 2: string reader) throws (1: RangeRefused refused)
}
