/*
 * Kestrel's thrift service. Framed transport, binary protocol (strict or not), default port 2229.
 *
 * Names, numbers and types are those of Twitter's Kestrel, so clients generated from its IDL work unchanged.
 *
 * The requests of one connection are answered in order. A refused request is answered with a TApplicationException,
 * whose message has the reason:
 *   6 (INTERNAL_ERROR)        refused because of the server's status, a limit, a list of clients, a name, or a failed disk
 *   1 (UNKNOWN_METHOD)        not a method of this service
 *   2 (INVALID_MESSAGE_TYPE)  the message is not a call; there are no oneway methods
 *   7 (PROTOCOL_ERROR)        the message cannot be read, or an argument without a default is missing
 */

namespace java net.lag.kestrel.thrift
#@namespace scala net.lag.kestrel.thriftscala

// Not the file's own name, which is the server's package in Python.
namespace py kestrel_thrift

/* One item, as get returns it. */
struct Item {
  /* The data of the item. */
  1: binary data

  /* The id for confirm and abort, or 0 if the item is already removed from the queue. */
  2: i64 id
}

/* Some figures of a queue. All are 0 for an alias and for a queue that does not exist. */
struct QueueInfo {
  /* The data of the next item, if there is one. */
  1: optional binary head_item

  /* Number of items in the queue, without open reads. */
  2: i64 items

  /* Bytes of the data of these items. */
  3: i64 bytes

  /* Bytes of the queue's journal files. */
  4: i64 journal_bytes

  /* Milliseconds since the next item was put, or 0 without one. */
  5: i64 age

  /* Number of clients that wait for an item. */
  6: i32 waiters

  /* Number of open reads: items that are neither confirmed nor aborted yet. */
  7: i32 open_transactions
}

/* The requests that the server accepts. */
enum Status {
  /* Any status without a number here (WriteAvoid, or Down while the server stops). It cannot be set. */
  NOT_CONFIGURED = 0,

  /* No reads and no writes. Open reads can still be confirmed and aborted. */
  QUIESCENT = 1,

  /* Reads, but no writes: no put, flush or delete. */
  READ_ONLY = 2,

  /* All requests. */
  UP = 3,
}

/*
 * Ranges are an extension of this server. Twitter's Kestrel answers UNKNOWN_METHOD.
 *
 * If a queue's storage gives its items durable ids (scrolls do), one reader at a time can read items by these ids. Reads
 * of the same ids return the same items until the reader releases them.
 */

/* One item, as read_range returns it. */
struct RangeItem {
  /* The id of the item. Ids increase, may have gaps, and are never reused. */
  1: i64 id

  /* The data of the item. */
  2: binary data

  /* Time of the put, in milliseconds since 1970. */
  3: i64 add_time

  /* Expiry time, in milliseconds since 1970, or 0 for never. */
  4: i64 expiry
}

/* The position of a reader. */
struct RangeState {
  /* The lowest id that is not released. */
  1: i64 first_id

  /* The id of the next item to be committed. All items with lower ids are committed. */
  2: i64 next_id

  /* The end of the batch that open_range requested. */
  3: i64 end_id
}

/*
 * A range that cannot be used: the queue's storage has no ids, another reader has opened the queue, some of its items
 * were released, or it reaches beyond the last item. The request will fail again if repeated.
 */
exception RangeRefused {
  1: string reason
}

service Kestrel {
  /*
   * Append items to a queue, which is created if it does not exist. Returns the number of stored items. The put ends at
   * the first item that the queue refuses (a limit of items, bytes or item size), so the first items are stored.
   *
   * expiration_msec: time from now at which an item expires. It is then dropped, or moved to the queue's expireToQueue.
   * 0 means never. With a negative value, the item has already expired.
   *
   * If an item is larger than a request may have, or a call has too many items, the answer is an exception and no item
   * is stored.
   */
  i32 put(1: string queue_name, 2: list<binary> items, 3: i32 expiration_msec = 0)

  /*
   * Append items to a queue, as put does, delay_msec from now. They are stored at once, and become visible in the queue
   * then. delay_msec is 1 to 315360000000 (ten years), and expiration_msec counts from now.
   *
   * This is an extension of this server. Twitter's Kestrel answers UNKNOWN_METHOD.
   */
  i32 put_delayed(1: string queue_name, 2: list<binary> items, 3: i64 delay_msec, 4: i32 expiration_msec = 0)

  /*
   * Take up to max_items from the head of a queue. A negative max_items takes as many as one reply can hold.
   *
   * timeout_msec: with 0, the available items are returned at once. Otherwise the call returns when it has max_items,
   * or when the time is over, with the items so far (perhaps none).
   *
   * auto_abort_msec: with 0, the items are removed from the queue and their ids are 0. Otherwise each is an open read.
   * It must be confirmed by its id within this time, on this or another connection. If not, it is put back at the head
   * of the queue, as if it had been aborted.
   *
   * A connection at its limit of open reads of the queue gets no further ones until it confirms or aborts some.
   */
  list<Item> get(1: string queue_name, 2: i32 max_items, 3: i32 timeout_msec = 0, 4: i32 auto_abort_msec = 0)

  /*
   * Confirm open reads, which removes their items. Returns their number. Ids that are not open, or belong to another
   * queue, are ignored.
   */
  i32 confirm(1: string queue_name, 2: set<i64> ids)

  /*
   * Abort open reads, which puts their items back at the head of the queue. Returns their number. Other ids are ignored.
   */
  i32 abort(1: string queue_name, 2: set<i64> ids)

  /*
   * Return some figures of a queue and its next item without taking it. The item may be gone when the answer arrives.
   */
  QueueInfo peek(1: string queue_name)

  /*
   * Return the names of all queues, sorted, without aliases. Twitter's Kestrel answers UNKNOWN_METHOD.
   */
  list<string> list_queues()

  /*
   * Drop all items of a queue. Open reads stay open.
   */
  void flush_queue(1: string queue_name)

  /*
   * Drop all items of every queue. Open reads stay open.
   */
  void flush_all_queues()

  /*
   * Delete a queue with its items, open reads and files.
   */
  void delete_queue(1: string queue_name)

  /*
   * Return the published status of the server.
   */
  Status current_status()

  /*
   * Change the server's status.
   */
  void set_status(1: Status status)

  /*
   * Return the version of the server.
   */
  string get_version()

  /*
   * Keep a queue's items for a reader, from the first item that is in the queue now, and return the reader's position.
   * The queue is created if it does not exist. Until the items are released, they can be read by their ids. This
   * includes items that other clients take, that expire, or that a limit or a flush drops. The method may be called
   * again at any time.
   *
   * reader: name of the reader, 1 to 255 bytes. A queue has one reader at a time, which outlives connections and
   * restarts of the server.
   *
   * end_id of the answer: end of a batch that begins at first_id (0: the first unreleased item) and has at most max_items
   * (0: all items). first_id lies between the first_id and the next_id of the answer.
   */
  RangeState open_range(1: string queue_name, 2: string reader, 3: i64 first_id = 0, 4: i32 max_items = 0)
    throws (1: RangeRefused refused)

  /*
   * Return the items from first_id to below end_id, in order, without taking or opening them.
   *
   * If they have more than max_bytes (0: what one reply can hold), only the first ones are returned, but at least one.
   * Continue after the last one. An empty answer means that there are no items.
   */
  list<RangeItem> read_range(1: string queue_name, 2: string reader, 3: i64 first_id, 4: i64 end_id, 5: i32 max_bytes = 0)
    throws (1: RangeRefused refused)

  /*
   * Release all items below end_id. They are removed from the queue, for all clients.
   */
  RangeState release_range(1: string queue_name, 2: string reader, 3: i64 end_id) throws (1: RangeRefused refused)

  /*
   * Stop keeping items for the reader. Items that are still in the queue stay there.
   */
  void close_range(1: string queue_name, 2: string reader) throws (1: RangeRefused refused)
}
