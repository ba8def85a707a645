/* Frozen weights that lie on NVMe, page by page on their way to devices: a cache of host memory into which they are read ahead in the
 * order of uploads. The order is that of the latest program of the same kind; where a program goes another way, its pages are read when
 * they are asked for. */
#ifndef RH_RUN_FEED_H
#define RH_RUN_FEED_H

#include "device/device.h"
#include "offload/store.h"

struct run_feed;

/* Bytes of its cache for pages of so many bytes. */
int64_t run_feed_bytes(int64_t page_bytes);

/* A store without a space is one of a simulated machine: reads take their time on a host queue of its first device's.
 * memory: run_feed_bytes of it, from a page's border. All is borrowed until run_feed_destroy, which comes after rh_space_close. */
int run_feed_create(struct rh_store *store, int64_t page_bytes, char *memory, struct rh_device *const *device, int devices,
                    struct run_feed **out) RH_MUST;
void run_feed_destroy(struct run_feed *feed);

/* Around a program of one kind (0 or 1): the second reads ahead for the next of the same kind. */
void run_feed_begin(struct run_feed *feed, int kind);
void run_feed_end(struct run_feed *feed);

/* Enqueues on a device's stream the copy of bytes [first, first+bytes) of a frozen block's weights, in order with what is enqueued there.
 * The host waits for NVMe, and for room in the cache. */
int run_feed_up(struct run_feed *feed, int device, enum rh_stream stream, char *to, int block, int64_t first, int64_t bytes) RH_MUST;

#endif
