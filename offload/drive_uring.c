/* A drive with an io_uring of its own. Threads submit under the lock; one thread takes completions, submits the requests that wait in
 * line, and calls `done`. The kernel keeps the two sides of a ring apart, so they need no common lock. */
#include "offload/drive_internal.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/thread.h"

#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 30 }; /* of one registration: the kernel's limit */

struct uring {
	struct rh_drive base;
	struct rh_drive_options options;
	struct io_uring ring;
	int fixed_file;
	pthread_t thread;
	pthread_mutex_t lock; /* of all that follows, and of the ring's submission side */
	pthread_cond_t idle;
	struct drive_line line;
	int in_flight, broken;  /* broken: the errno that the kernel refused a submission with */
	int abandoned, telling; /* telling: the thread is in `done` */
	struct iovec *piece;    /* registered memory */
	size_t pieces, capacity;
	int registered; /* of the pieces, all or none */
	int holders;    /* the thread, and who has it open: the last of them frees it */
};

static struct uring *uring_of(struct rh_drive *drive)
{
	return (struct uring *)drive;
}

/* The registration that holds all of the request's memory, -1: none. */
static int piece_of(const struct uring *uring, const struct rh_drive_request *request)
{
	const char *at = request->memory;
	for (size_t i = 0; uring->registered && i < uring->pieces; i++) {
		const char *base = uring->piece[i].iov_base;
		if (at >= base && at + request->bytes <= base + uring->piece[i].iov_len)
			return (int)i;
	}
	return -1;
}

static void prepare(const struct uring *uring, struct io_uring_sqe *sqe, struct rh_drive_request *request)
{
	int file = uring->fixed_file ? 0 : uring->options.descriptor, piece = piece_of(uring, request);
	char *memory = (char *)request->memory + request->moved;
	unsigned bytes = (unsigned)drive_next_bytes(request);
	uint64_t offset = (uint64_t)(request->offset + request->moved);
	if (request->kind == RH_DRIVE_READ && piece >= 0)
		io_uring_prep_read_fixed(sqe, file, memory, bytes, offset, piece);
	else if (request->kind == RH_DRIVE_READ)
		io_uring_prep_read(sqe, file, memory, bytes, offset);
	else if (piece >= 0)
		io_uring_prep_write_fixed(sqe, file, memory, bytes, offset, piece);
	else
		io_uring_prep_write(sqe, file, memory, bytes, offset);
	io_uring_sqe_set_data(sqe, request);
	if (uring->fixed_file)
		sqe->flags |= IOSQE_FIXED_FILE;
}

/* Handles an entry that the kernel did not take: its request is finished with a fault at once, although the entry may still go with a
 * later submission. */
static struct rh_drive_request nothing;

static int enter(struct io_uring *ring)
{
	int sent;
	do
		sent = io_uring_submit(ring);
	while (sent == -EINTR || sent == -EAGAIN || sent == -EBUSY);
	return sent < 0 ? sent : 0;
}

/* Sends what the queue has room for; lock held. What the kernel refuses goes to *refused, to be told without the lock. */
static void pump(struct uring *uring, struct drive_line *refused)
{
	while (uring->line.first && uring->in_flight < uring->options.depth) {
		struct rh_drive_request *request = drive_line_take(&uring->line);
		struct io_uring_sqe *sqe = uring->broken ? NULL : io_uring_get_sqe(&uring->ring);
		if (sqe) {
			prepare(uring, sqe, request);
			uring->broken = enter(&uring->ring);
			if (uring->broken) {
				io_uring_prep_nop(sqe);
				io_uring_sqe_set_data(sqe, &nothing);
			}
		} else if (!uring->broken) {
			uring->broken = -EIO; /* the ring is as deep as the queue: there is always an entry */
		}
		if (uring->broken) {
			request->rc = uring->broken;
			drive_line_add(refused, request);
		} else {
			uring->in_flight++;
		}
	}
}

static void tell(struct drive_line *line)
{
	for (struct rh_drive_request *request; (request = drive_line_take(line));)
		request->done(request);
}

static void uring_submit(struct rh_drive *drive, struct rh_drive_request *request)
{
	struct uring *uring = uring_of(drive);
	struct drive_line refused = {0};
	pthread_mutex_lock(&uring->lock);
	drive_line_add(&uring->line, request);
	pump(uring, &refused);
	pthread_mutex_unlock(&uring->lock);
	tell(&refused);
}

/* An injected fault: delays the answer, without the lock. */
static void delay_request(struct uring *uring, const struct rh_drive_request *request)
{
	int ms = uring->abandoned ? 0 : request->delay_ms;
	if (!ms)
		return;
	pthread_mutex_unlock(&uring->lock);
	drive_delay(ms);
	pthread_mutex_lock(&uring->lock);
}

static int is_idle(const struct uring *uring)
{
	return !uring->in_flight && !uring->line.first && !uring->telling;
}

/* Ends a call of `done`. 1: the drive was abandoned, and every request has been answered. */
static int finish_telling(struct uring *uring)
{
	pthread_mutex_lock(&uring->lock);
	uring->telling = 0;
	int over = uring->abandoned && !uring->in_flight;
	if (uring->abandoned || is_idle(uring))
		pthread_cond_broadcast(&uring->idle);
	pthread_mutex_unlock(&uring->lock);
	return over;
}

/* Counts rings that were unmapped. One made later may lie at the same address, where another thread wrote: the kernel orders the two, and
 * this says so to ThreadSanitizer, which does not see liburing's system calls. */
static _Atomic unsigned unmapped;

static void release_holder(struct uring *uring)
{
	pthread_mutex_lock(&uring->lock);
	int last = !--uring->holders;
	pthread_mutex_unlock(&uring->lock);
	if (!last)
		return;
	io_uring_queue_exit(&uring->ring);
	atomic_fetch_add_explicit(&unmapped, 1, memory_order_release);
	pthread_mutex_destroy(&uring->lock);
	pthread_cond_destroy(&uring->idle);
	rh_free(uring->piece);
	rh_free(uring);
}

static void *reap(void *context)
{
	struct uring *uring = context;
	for (int over = 0; !over;) {
		struct io_uring_cqe *cqe;
		struct drive_line finished = {0};
		if (io_uring_wait_cqe(&uring->ring, &cqe) < 0)
			continue; /* -EINTR */
		struct rh_drive_request *request = io_uring_cqe_get_data(cqe);
		int result = cqe->res;
		io_uring_cqe_seen(&uring->ring, cqe);
		if (!request)
			break; /* close() says so */
		if (request == &nothing)
			continue;
		pthread_mutex_lock(&uring->lock);
		delay_request(uring, request);
		int abandoned = uring->abandoned; /* then the request may be gone */
		uring->in_flight--;
		if (!abandoned) {
			drive_line_add(drive_advance(request, result, uring->options.unit) ? &finished : &uring->line, request);
			pump(uring, &finished);
		}
		uring->telling = finished.first != NULL;
		pthread_mutex_unlock(&uring->lock);
		tell(&finished);
		over = finish_telling(uring);
	}
	release_holder(uring);
	return NULL;
}

static void register_pieces(struct uring *uring)
{
	if (uring->registered)
		(void)io_uring_unregister_buffers(&uring->ring);
	int rc = io_uring_register_buffers(&uring->ring, uring->piece, (unsigned)uring->pieces);
	uring->registered = !rc;
	if (rc)
		rh_warn_once("NVMe buffers are not registered (%s): each transfer costs a little more; raise the limit of locked memory "
		             "(ulimit -l, or memlock in /etc/security/limits.conf)",
		             strerror(-rc));
}

static void uring_attach(struct rh_drive *drive, void *memory, int64_t bytes)
{
	struct uring *uring = uring_of(drive);
	size_t more = (size_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES);
	pthread_mutex_lock(&uring->lock);
	while (!is_idle(uring))
		pthread_cond_wait(&uring->idle, &uring->lock);
	if (rh_grow(&uring->piece, &uring->capacity, uring->pieces + more, sizeof *uring->piece)) {
		rh_error_clear(); /* unregistered memory works too */
		rh_warn_once("NVMe buffers are not registered (out of memory): each transfer costs a little more");
	} else {
		for (int64_t at = 0; at < bytes; at += PIECE_BYTES)
			uring->piece[uring->pieces++] =
			        (struct iovec){(char *)memory + at, (size_t)(bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES)};
		register_pieces(uring);
	}
	pthread_mutex_unlock(&uring->lock);
}

/* 1: no request is in flight, after at most `seconds`. The lock is held. */
static int wait_idle(struct uring *uring, double seconds)
{
	struct timespec until = rh_cond_deadline(seconds);
	while (!is_idle(uring) && pthread_cond_timedwait(&uring->idle, &uring->lock, &until) != ETIMEDOUT)
		;
	return is_idle(uring);
}

static void uring_close(struct rh_drive *drive, double seconds)
{
	struct uring *uring = uring_of(drive);
	pthread_mutex_lock(&uring->lock);
	int idle = wait_idle(uring, seconds);
	struct io_uring_sqe *sqe = idle ? io_uring_get_sqe(&uring->ring) : NULL; /* also where it broke: that may have passed */
	if (sqe) {
		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data(sqe, NULL);
		if (enter(&uring->ring) && enter(&uring->ring)) /* where the first call fails, the entry is still queued */
			sqe = NULL;
	}
	uring->abandoned = 1;
	while (!sqe && uring->telling)
		pthread_cond_wait(&uring->idle, &uring->lock);
	pthread_mutex_unlock(&uring->lock);
	if (sqe)
		pthread_join(uring->thread, NULL);
	else
		pthread_detach(uring->thread); /* it waits for the drive */
	release_holder(uring);
}

/* Sends an entry that does nothing, and takes its answer: a container may allow a ring to be made and deny that it is used. */
static int try_ring(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	io_uring_prep_nop(io_uring_get_sqe(ring));
	int rc = enter(ring);
	if (rc)
		return rc;
	do
		rc = io_uring_wait_cqe(ring, &cqe);
	while (rc == -EINTR);
	if (rc)
		return rc;
	io_uring_cqe_seen(ring, cqe);
	return 0;
}

static const struct rh_drive_ops ops = {"io_uring", uring_submit, uring_attach, uring_close};

int drive_uring_open(const struct rh_drive_options *options, struct rh_drive **out)
{
	struct uring *uring = rh_alloc(1, sizeof *uring);
	if (!uring)
		return -ENOMEM;
	uring->base.ops = &ops;
	uring->options = *options;
	uring->holders = 2;
	int rc = io_uring_queue_init((unsigned)options->depth + 1, &uring->ring, 0); /* one more for close() */
	if (rc) {
		rh_free(uring);
		return rc == -ENOMEM ? -EPERM : rc; /* old kernels charge rings to locked memory: threads need none */
	}
	rc = try_ring(&uring->ring);
	if (rc) {
		io_uring_queue_exit(&uring->ring);
		rh_free(uring);
		return rc == -ENOMEM ? -EPERM : rc;
	}
	(void)atomic_load_explicit(&unmapped, memory_order_acquire);
	uring->fixed_file = !io_uring_register_files(&uring->ring, &options->descriptor, 1);
	pthread_mutex_init(&uring->lock, NULL);
	rh_cond_init(&uring->idle);
	rc = rh_thread_start(&uring->thread, reap, uring);
	if (rc) {
		io_uring_queue_exit(&uring->ring);
		rh_free(uring);
		return rc;
	}
	*out = &uring->base;
	return 0;
}
