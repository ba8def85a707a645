#include "run/feed.h"

#include "core/alloc.h"
#include "device/host_queue.h"
#include "offload/frame_choice.h"

#include <string.h>

enum { FRAMES = 8 };

/* EMPTY --begin_read--> READING --page_at--> HERE --run_feed_up--> HERE, with copies on their way (sent) --begin_read, when they are
 * over--> */
enum state { EMPTY, READING, HERE };

struct frame {
	char *memory;
	struct rh_space_io *io;
	int64_t ticket; /* of the queue's, in place of io */
	enum state state;
	int page;
	uint64_t sent;          /* devices, by bit, that may still read it */
	struct rh_event **copy; /* of each device: its latest copy is over */
	uint64_t used;          /* when it was asked for last, in turns */
};

/* Pages in the order in which they were asked for. */
struct order {
	int *page;
	size_t count, capacity;
};

struct run_feed {
	struct rh_store *store;
	struct rh_host_queue *queue; /* in virtual time: reads take it and bring nothing; else NULL */
	int64_t page_bytes;
	struct rh_device *const *device;
	int devices;
	struct frame frame[FRAMES];
	int *first;  /* of each block: its first page; -1: not on NVMe */
	int *record; /* of each page */
	int *where;  /* frame of each page, -1 */
	int pages;
	struct order known[2], now; /* of the latest program of each kind; of the present one */
	int kind;
	size_t at; /* in known[kind]: what is to be asked for next */
	/* Where in known[kind] each page is asked for, at `at` or later once coming_at has said so, and where that of each place is again;
	 * known[kind].count: nowhere. */
	size_t *coming, *again, again_capacity;
	uint64_t turns;
};

int64_t run_feed_bytes(int64_t page_bytes)
{
	return FRAMES * page_bytes;
}

/* Numbers the pages of all blocks. */
static int find_pages(struct run_feed *feed)
{
	int blocks = rh_store_blocks(feed->store);
	enum rh_dtype dtype = rh_store_options(feed->store)->dtype;
	feed->first = rh_alloc((size_t)blocks, sizeof *feed->first);
	if (!feed->first)
		return -ENOMEM;
	for (int b = 0; b < blocks; b++) {
		int64_t bytes = rh_block_bytes(rh_store_block(feed->store, b), dtype);
		feed->first[b] = rh_store_pages(feed->store, b) < 0 ? -1 : feed->pages;
		if (feed->first[b] >= 0)
			feed->pages += (int)((bytes + feed->page_bytes - 1) / feed->page_bytes);
	}
	feed->record = rh_alloc((size_t)feed->pages, sizeof *feed->record);
	feed->where = rh_alloc((size_t)feed->pages, sizeof *feed->where);
	feed->coming = rh_alloc((size_t)feed->pages, sizeof *feed->coming);
	int rc = feed->record && feed->where && feed->coming ? 0 : -ENOMEM;
	rc = rc ? rc : rh_grow(&feed->again, &feed->again_capacity, (size_t)feed->pages, sizeof *feed->again);
	for (int k = 0; !rc && k < 2; k++) { /* a first guess: all in turn */
		rc = rh_grow(&feed->known[k].page, &feed->known[k].capacity, (size_t)feed->pages, sizeof(int));
		feed->known[k].count = (size_t)feed->pages;
	}
	for (int b = 0; !rc && b < blocks; b++) {
		int end = feed->pages;
		for (int next = b + 1; next < blocks && end == feed->pages; next++)
			end = feed->first[next] >= 0 ? feed->first[next] : end;
		for (int p = feed->first[b]; p >= 0 && p < end; p++) {
			feed->record[p] = rh_store_pages(feed->store, b) + p - feed->first[b];
			feed->where[p] = -1;
			feed->known[0].page[p] = feed->known[1].page[p] = p;
		}
	}
	return rc;
}

int run_feed_create(struct rh_store *store, int64_t page_bytes, char *memory, struct rh_device *const *device, int devices,
                    struct run_feed **out)
{
	struct run_feed *feed = rh_alloc(1, sizeof *feed);
	struct rh_space *space = rh_store_options(store)->space;
	if (!feed)
		return -ENOMEM;
	feed->store = store;
	feed->page_bytes = page_bytes;
	feed->device = device;
	feed->devices = devices;
	int rc = find_pages(feed);
	if (!rc && !space)
		rc = device[0]->ops->host_queue(device[0], &feed->queue);
	for (int i = 0; !rc && i < FRAMES; i++) {
		struct frame *frame = &feed->frame[i];
		frame->memory = memory + i * page_bytes;
		frame->page = -1;
		frame->copy = rh_alloc((size_t)devices, sizeof(struct rh_event *));
		rc = frame->copy ? 0 : -ENOMEM;
		if (!rc && space)
			rc = rh_space_io_create(space, page_bytes, &frame->io);
		for (int d = 0; !rc && d < devices; d++)
			rc = device[d]->ops->event_create(device[d], RH_EVENT_HOST, &frame->copy[d]);
	}
	if (rc) {
		run_feed_destroy(feed);
		return rc;
	}
	if (space)
		rh_space_attach(space, memory, run_feed_bytes(page_bytes));
	*out = feed;
	return 0;
}

void run_feed_destroy(struct run_feed *feed)
{
	if (!feed)
		return;
	if (feed->queue)
		feed->queue->ops->destroy(feed->queue);
	for (int i = 0; i < FRAMES; i++) {
		rh_space_io_destroy(feed->frame[i].io);
		for (int d = 0; feed->frame[i].copy && d < feed->devices; d++)
			if (feed->frame[i].copy[d])
				feed->frame[i].copy[d]->ops->event_destroy(feed->frame[i].copy[d]);
		rh_free(feed->frame[i].copy);
	}
	for (int k = 0; k < 2; k++)
		rh_free(feed->known[k].page);
	rh_free(feed->now.page);
	rh_free(feed->first);
	rh_free(feed->record);
	rh_free(feed->where);
	rh_free(feed->coming);
	rh_free(feed->again);
	rh_free(feed);
}

/* Of an order from its beginning. */
static void find_coming(struct run_feed *feed)
{
	const struct order *order = &feed->known[feed->kind];
	for (int p = 0; p < feed->pages; p++)
		feed->coming[p] = order->count;
	for (size_t i = order->count; i-- > 0;) {
		feed->again[i] = feed->coming[order->page[i]];
		feed->coming[order->page[i]] = i;
	}
}

/* Where the page is asked for, from `at` on. */
static size_t coming_at(struct run_feed *feed, int page)
{
	while (feed->coming[page] < feed->at)
		feed->coming[page] = feed->again[feed->coming[page]];
	return feed->coming[page];
}

/* Whether a page is asked for among the next ones: it stays. */
static int is_coming(struct run_feed *feed, int page)
{
	size_t at = coming_at(feed, page);
	return at < feed->known[feed->kind].count && at < feed->at + FRAMES;
}

/* 1: the frame's copies are over; 0: not yet; negative: a device's fault. */
static int is_read(struct run_feed *feed, struct frame *frame)
{
	for (int d = 0; d < feed->devices; d++) {
		if (!(frame->sent >> d & 1))
			continue;
		int done = frame->copy[d]->ops->event_query(frame->copy[d]);
		if (done <= 0)
			return done;
		frame->sent &= ~((uint64_t)1 << d);
	}
	return 1;
}

static int await_copies(struct run_feed *feed, struct frame *frame)
{
	int rc = 0;
	for (int d = 0; !rc && d < feed->devices; d++)
		if (frame->sent >> d & 1)
			rc = frame->copy[d]->ops->event_sync(frame->copy[d]);
	frame->sent = 0;
	return rc;
}

/* The frame that is least missed: empty, else longest unused. With `must` even one whose page is coming or whose copy is not over. */
static struct frame *choose(struct run_feed *feed, int must)
{
	struct rh_frame_choice best = {.frame = -1};
	for (int i = 0; i < FRAMES; i++) {
		struct frame *frame = &feed->frame[i];
		int cost = frame->state == EMPTY                                     ? 0
		           : frame->state == READING || is_coming(feed, frame->page) ? 2
		                                                                     : is_read(feed, frame) != 1;
		if (must || !cost)
			rh_frame_offer(&best, i, cost, frame->used);
	}
	return best.frame < 0 ? NULL : &feed->frame[best.frame];
}

static int await_read(struct run_feed *feed, struct frame *frame)
{
	return feed->queue ? feed->queue->ops->await(feed->queue, frame->ticket) : rh_space_io_wait(frame->io);
}

static int begin_read(struct run_feed *feed, struct frame *frame, int page)
{
	int rc = await_copies(feed, frame);
	if (!rc && frame->state == READING)
		rc = await_read(feed, frame);
	if (rc)
		return rc;
	if (frame->page >= 0)
		feed->where[frame->page] = -1;
	frame->page = page;
	frame->state = READING;
	frame->used = ++feed->turns;
	feed->where[page] = (int)(frame - feed->frame);
	const struct rh_host_job job = {.work = RH_HOST_NVME_READ, .bytes = (double)feed->page_bytes};
	if (feed->queue)
		return feed->queue->ops->submit(feed->queue, &job, &frame->ticket);
	rh_space_read(frame->io, feed->record[page], frame->memory);
	return 0;
}

static void read_ahead(struct run_feed *feed)
{
	const struct order *order = &feed->known[feed->kind];
	for (size_t i = feed->at; i < order->count && i < feed->at + FRAMES; i++) {
		struct frame *frame = feed->where[order->page[i]] < 0 ? choose(feed, 0) : NULL;
		if (feed->where[order->page[i]] >= 0)
			continue;
		if (!frame || begin_read(feed, frame, order->page[i]))
			return; /* a fault stays where it was met, and is met again */
	}
}

/* The page is asked for: what comes after it is known from where it stood the last time. */
static int advance(struct run_feed *feed, int page)
{
	const struct order *order = &feed->known[feed->kind];
	int rc = rh_grow(&feed->now.page, &feed->now.capacity, feed->now.count + 1, sizeof(int));
	rc = rc ? rc : rh_grow(&feed->again, &feed->again_capacity, feed->now.count + 1, sizeof *feed->again);
	if (rc)
		return rc;
	feed->now.page[feed->now.count++] = page;
	size_t at = coming_at(feed, page);
	if (at < order->count)
		feed->at = at + 1;
	return 0;
}

static int page_at(struct run_feed *feed, int page, struct frame **out)
{
	int rc = advance(feed, page);
	if (!rc && feed->where[page] < 0)
		rc = begin_read(feed, choose(feed, 1), page);
	if (rc)
		return rc;
	struct frame *frame = &feed->frame[feed->where[page]];
	if (frame->state == READING)
		rc = await_read(feed, frame);
	if (rc)
		return rc;
	frame->state = HERE;
	frame->used = ++feed->turns;
	*out = frame;
	return 0;
}

void run_feed_begin(struct run_feed *feed, int kind)
{
	feed->kind = kind;
	feed->at = feed->now.count = 0;
	find_coming(feed);
	read_ahead(feed);
}

void run_feed_end(struct run_feed *feed)
{
	struct order order = feed->known[feed->kind];
	feed->known[feed->kind] = feed->now;
	feed->now = order;
	run_feed_begin(feed, feed->kind);
}

int run_feed_up(struct run_feed *feed, int device, enum rh_stream stream, char *to, int block, int64_t first, int64_t bytes)
{
	struct rh_device *on = feed->device[device];
	RH_ASSERT(feed->first[block] >= 0);
	for (int64_t done = 0, length; done < bytes; done += length) {
		int64_t within = (first + done) % feed->page_bytes, left = feed->page_bytes - within;
		struct frame *frame;
		length = bytes - done < left ? bytes - done : left;
		int rc = page_at(feed, feed->first[block] + (int)((first + done) / feed->page_bytes), &frame);
		if (!rc)
			rc = on->ops->copy_up(on, stream, to + done, frame->memory + within, length);
		if (!rc)
			rc = on->ops->record(on, stream, frame->copy[device]);
		if (rc)
			return rc;
		frame->sent |= (uint64_t)1 << device;
		read_ahead(feed);
	}
	return 0;
}
