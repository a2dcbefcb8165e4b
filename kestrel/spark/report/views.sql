-- The tables of a report, as temporary views. They are made of these views, which `kestrel.spark.views` registers first:
--   histories  a row for each item of each queue, from the journals
--   problems   a row for each file with a problem, from the same reading
--   settings   one row: `now`, when the journals were read, and `interval_ms`, null for the default
-- docs/spark.md describes the columns. A row describes a queue, a server or the whole fleet, as its column `scope` says.
-- The columns `server` and `queue` are null where they do not apply. To change a view, run its changed statement.

-- Times outside the years 1970 to 2526 are invalid: releases of Kestrel and damaged clocks write such times.
CREATE OR REPLACE TEMPORARY FUNCTION valid_time(time TIMESTAMP) RETURNS TIMESTAMP
RETURN IF(time > TIMESTAMP '1970-01-01 00:00:00Z' AND time < TIMESTAMP '2527-01-01 00:00:00Z', time, NULL);

-- One row for each item. The bounds of a removal or first read are never before the add, although a clock that was set
-- back makes times run backwards. `is_taken` is true if a client got the item; a flush or discard looks the same.
CREATE OR REPLACE TEMPORARY VIEW items AS
WITH known AS (
  SELECT
    server, queue, data_bytes, expiry_time, state, expired, discarded, position,
    valid_time(add_time) AS add_time,
    valid_time(removed_after) AS removed_after,
    valid_time(removed_before) AS removed_before,
    valid_time(taken_after) AS taken_after,
    valid_time(taken_before) AS taken_before,
    state IN ('queued', 'open') AS is_left,
    state = 'open' AS is_open,
    coalesce(opens, 0) > 0 OR state = 'open' OR (state <> 'queued' AND expired IS DISTINCT FROM 'yes') AS is_taken,
    coalesce(aborts, errors) AS returns
  FROM histories
  -- A pack file has a placeholder for each removed item that an open read follows: no data, and the add time 0.
  WHERE NOT (data_bytes = 0 AND add_time <=> TIMESTAMP '1970-01-01 00:00:00Z' AND state NOT IN ('queued', 'open'))
), bounded_below AS (
  SELECT
    * EXCEPT (removed_after, taken_after),
    IF(is_left, NULL, greatest(removed_after, add_time)) AS removed_after,
    IF(is_taken AND taken_after IS NOT NULL, greatest(taken_after, add_time), NULL) AS taken_after
  FROM known
), bounded AS (
  SELECT
    * EXCEPT (removed_before, taken_before),
    IF(is_left OR removed_before IS NULL, NULL, greatest(removed_before, removed_after)) AS removed_before,
    IF(is_taken AND taken_before IS NOT NULL, greatest(taken_before, taken_after), NULL) AS taken_before
  FROM bounded_below
)
SELECT
  *,
  IF(is_taken, unix_millis(taken_after) - unix_millis(add_time), NULL) AS waited_least_ms,
  IF(is_taken AND taken_after IS NOT NULL, greatest(
    unix_millis(coalesce(taken_before, (SELECT now FROM settings))) - unix_millis(add_time),
    unix_millis(taken_after) - unix_millis(add_time)
  ), NULL) AS waited_most_ms
FROM bounded;

-- The length of an interval: the setting, or the shortest round one that divides the time range into at most 200.
CREATE OR REPLACE TEMPORARY VIEW intervals AS
WITH time_range AS (
  SELECT unix_millis(min(add_time)) AS first_ms, unix_millis(max(add_time)) AS last_ms FROM items
), round_lengths AS (
  SELECT explode(array(
    1L, 10L, 100L, 1000L, 5000L, 10000L, 30000L,
    60000L, 300000L, 600000L, 1800000L,
    3600000L, 10800000L, 21600000L, 43200000L,
    86400000L, 604800000L, 2592000000L, 7776000000L
  )) AS length_ms
)
SELECT coalesce(
  (SELECT interval_ms FROM settings),
  (SELECT min(length_ms) FROM round_lengths, time_range WHERE last_ms DIV length_ms - first_ms DIV length_ms < 200),
  (SELECT 31536000000L * ((last_ms - first_ms) DIV (31536000000L * 199) + 1) FROM time_range),
  60000L
) AS interval_ms;

-- Figures of each queue, server and the fleet. The head of a server is its oldest head.
CREATE OR REPLACE TEMPORARY VIEW queues AS
WITH each_queue AS (
  SELECT
    server,
    queue,
    count(*) AS items_added,
    sum(data_bytes) AS bytes_added,
    count_if(NOT is_left) AS items_removed,
    sum(IF(is_left, 0, data_bytes)) AS bytes_removed,
    count_if(is_left) AS items_left,
    sum(IF(is_left, data_bytes, 0)) AS bytes_left,
    count_if(is_open) AS items_open,
    sum(returns) AS returns,
    min(add_time) AS first_add_time,
    max(add_time) AS last_add_time,
    min_by(IF(is_left, add_time, NULL), IF(is_left, position, NULL)) AS head_add_time
  FROM items
  GROUP BY server, queue
), summed AS (
  SELECT
    CASE WHEN grouping(queue) = 0 THEN 'queue' WHEN grouping(server) = 0 THEN 'server' ELSE 'fleet' END AS scope,
    server,
    queue,
    count(*) AS queues,
    sum(items_added) AS items_added,
    sum(bytes_added) AS bytes_added,
    sum(items_removed) AS items_removed,
    sum(bytes_removed) AS bytes_removed,
    sum(items_added) + sum(items_removed) AS changes,
    sum(items_left) AS items_left,
    sum(bytes_left) AS bytes_left,
    sum(items_open) AS items_open,
    sum(returns) AS returns,
    min(first_add_time) AS first_add_time,
    max(last_add_time) AS last_add_time,
    min(head_add_time) AS head_add_time
  FROM each_queue
  GROUP BY GROUPING SETS ((server, queue), (server), ())
)
SELECT
  *,
  IF(head_add_time IS NULL, NULL,
     greatest(unix_millis((SELECT now FROM settings)) - unix_millis(head_add_time), 0)) AS head_age_ms
FROM summed;

-- The first 20 queues of each ranking, among all queues (`among` is fleet) and among those of their server.
CREATE OR REPLACE TEMPORARY VIEW rankings AS
WITH figures AS (
  SELECT
    *,
    inline(array(
      struct('busiest' AS ranking, changes AS figure, 0L AS tie),
      struct('biggest' AS ranking, IF(items_left > 0, bytes_left, NULL) AS figure, items_left AS tie),
      struct('oldest' AS ranking, -unix_millis(head_add_time) AS figure, 0L AS tie)
    ))
  FROM queues
  WHERE scope = 'queue'
), ranked AS (
  SELECT
    * EXCEPT (figure, tie),
    row_number() OVER (
      PARTITION BY ranking, among, IF(among = 'server', server, NULL)
      ORDER BY figure DESC, tie DESC, server, queue
    ) AS rank
  FROM figures LATERAL VIEW explode(array('fleet', 'server')) AS among
  WHERE figure IS NOT NULL
)
SELECT ranking, among, rank, * EXCEPT (ranking, among, rank, scope) FROM ranked WHERE rank <= 20;

-- Adds and removals in each interval with changes. A removal counts at its latest possible time. The row with a null
-- `start_time` has changes at unknown times: adds without a time, and removals since the last add.
CREATE OR REPLACE TEMPORARY VIEW throughput AS
WITH changes AS (
  SELECT server, queue, data_bytes, inline(array(
    struct(add_time AS time, 1L AS added, 0L AS removed),
    struct(removed_before AS time, 0L AS added, IF(is_left, 0L, 1L) AS removed)
  ))
  FROM items
), placed AS (
  SELECT
    *, timestamp_millis(unix_millis(time) DIV interval_ms * interval_ms) AS start_time
  FROM changes CROSS JOIN intervals
  WHERE added > 0 OR removed > 0
)
SELECT
  CASE WHEN grouping(queue) = 0 THEN 'queue' WHEN grouping(server) = 0 THEN 'server' ELSE 'fleet' END AS scope,
  server,
  queue,
  start_time,
  sum(added) AS items_added,
  sum(added * data_bytes) AS bytes_added,
  sum(removed) AS items_removed,
  sum(removed * data_bytes) AS bytes_removed
FROM placed
GROUP BY GROUPING SETS ((start_time, server, queue), (start_time, server), (start_time));

-- Items and bytes at the end of each interval in which they may have changed. The lower bound takes the earliest possible
-- time of each removal, and the upper bound the latest. An item without an add time counts only in the upper bound.
CREATE OR REPLACE TEMPORARY VIEW depth AS
WITH changes AS (
  SELECT server, queue, data_bytes, inline(array(
    struct(add_time AS time, IF(add_time IS NULL, 0L, 1L) AS least, 1L AS most),
    struct(removed_after AS time, IF(add_time IS NULL, 0L, -1L) AS least, 0L AS most),
    struct(removed_before AS time, 0L AS least, -1L AS most)
  ))
  FROM items
), placed AS (
  SELECT
    *, timestamp_millis(unix_millis(time) DIV interval_ms * interval_ms) AS start_time
  FROM changes CROSS JOIN intervals
  WHERE time IS NOT NULL OR most > 0
), changed AS (
  SELECT
    CASE WHEN grouping(queue) = 0 THEN 'queue' WHEN grouping(server) = 0 THEN 'server' ELSE 'fleet' END AS scope,
    server,
    queue,
    start_time,
    sum(least) AS items_least,
    sum(most) AS items_most,
    sum(least * data_bytes) AS bytes_least,
    sum(most * data_bytes) AS bytes_most
  FROM placed
  GROUP BY GROUPING SETS ((start_time, server, queue), (start_time, server), (start_time))
), so_far AS (
  SELECT
    scope,
    server,
    queue,
    start_time,
    sum(items_least) OVER until_now AS items_least,
    sum(items_most) OVER until_now AS items_most,
    sum(bytes_least) OVER until_now AS bytes_least,
    sum(bytes_most) OVER until_now AS bytes_most
  FROM changed
  WINDOW until_now AS (PARTITION BY scope, server, queue ORDER BY start_time NULLS FIRST)
)
SELECT * FROM so_far WHERE start_time IS NOT NULL;

-- How long items waited from their add until their first read. Ranks are exact up to 10,000 items.
CREATE OR REPLACE TEMPORARY VIEW waiting AS
WITH ranked AS (
  SELECT
    CASE WHEN grouping(queue) = 0 THEN 'queue' WHEN grouping(server) = 0 THEN 'server' ELSE 'fleet' END AS scope,
    server,
    queue,
    count(waited_least_ms) AS items,
    count_if(waited_least_ms IS NULL) AS items_unknown,
    percentile_approx(waited_least_ms, array(0.5, 0.95, 0.99), 10000) AS least,
    percentile_approx(waited_most_ms, array(0.5, 0.95, 0.99), 10000) AS most,
    max(waited_least_ms) AS max_least_ms,
    max(waited_most_ms) AS max_most_ms
  FROM items
  WHERE is_taken
  GROUP BY GROUPING SETS ((server, queue), (server), ())
)
SELECT
  scope, server, queue, items, items_unknown,
  least[0] AS p50_least_ms, most[0] AS p50_most_ms,
  least[1] AS p95_least_ms, most[1] AS p95_most_ms,
  least[2] AS p99_least_ms, most[2] AS p99_most_ms,
  max_least_ms, max_most_ms
FROM ranked;

-- How often items that were read came back. A restart of the server also redelivers open reads.
CREATE OR REPLACE TEMPORARY VIEW redeliveries AS
SELECT
  CASE WHEN grouping(queue) = 0 THEN 'queue' WHEN grouping(server) = 0 THEN 'server' ELSE 'fleet' END AS scope,
  server,
  queue,
  count(*) AS items,
  count_if(returns > 0) AS redelivered,
  count_if(returns > 0) / count(*) AS share,
  sum(returns) AS returns,
  max(returns) AS most_returns,
  count_if(returns = 0) AS never,
  count_if(returns = 1) AS once,
  count_if(returns = 2) AS twice,
  count_if(returns BETWEEN 3 AND 5) AS three_to_five,
  count_if(returns >= 6) AS six_or_more
FROM items
WHERE is_taken
GROUP BY GROUPING SETS ((server, queue), (server), ());

-- Items that had expired at their removal, or may have been discarded by a full queue. Only the expiry of the item
-- itself is known, because journals do not record a queue's `maxAge`.
CREATE OR REPLACE TEMPORARY VIEW expired AS
SELECT
  CASE WHEN grouping(queue) = 0 THEN 'queue' WHEN grouping(server) = 0 THEN 'server' ELSE 'fleet' END AS scope,
  server,
  queue,
  count_if(NOT is_left) AS items_removed,
  count_if(NOT is_left AND expired = 'yes') AS expired_yes,
  count_if(NOT is_left AND expired = 'maybe') AS expired_maybe,
  sum(IF(NOT is_left AND expired = 'yes', data_bytes, 0)) AS bytes_expired_yes,
  count_if(NOT is_left AND discarded = 'maybe') AS discarded_maybe,
  count_if(state = 'removed' AND discarded IS NULL) AS discarded_unknown,
  count_if(is_left) AS items_left,
  count_if(is_left AND valid_time(expiry_time) < (SELECT now FROM settings)) AS expired_left
FROM items
GROUP BY GROUPING SETS ((server, queue), (server), ());
