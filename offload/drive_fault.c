/* A drive in front of another one, which makes one call fail: the n-th of the process. */
#include "offload/drive_internal.h"

#include "core/alloc.h"

#include <pthread.h>

enum { SECTOR = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t asked, fail_at; /* protected by lock, like the next two */
static enum rh_drive_fault what;
static int code_of_it;

int64_t rh_drive_fail_nth(int64_t nth, enum rh_drive_fault fault, int code)
{
	pthread_mutex_lock(&lock);
	int64_t before = asked;
	asked = 0;
	fail_at = nth;
	what = fault;
	code_of_it = code;
	pthread_mutex_unlock(&lock);
	return before;
}

int drive_fault_armed(void)
{
	pthread_mutex_lock(&lock);
	int armed = fail_at > 0;
	pthread_mutex_unlock(&lock);
	return armed;
}

/* Counts a call that can go wrong so (only a write is torn); nonzero where it is the one, and then what is to go wrong. */
static int is_due(int is_write, enum rh_drive_fault *fault, int *code)
{
	pthread_mutex_lock(&lock);
	int due = fail_at > 0 && (is_write || what != RH_FAULT_TORN) && ++asked == fail_at;
	if (due) {
		*fault = what;
		*code = code_of_it;
	}
	pthread_mutex_unlock(&lock);
	return due;
}

int drive_fault_due(void)
{
	enum rh_drive_fault fault = RH_FAULT_FAIL;
	int code = 0;
	return is_due(0, &fault, &code) && fault == RH_FAULT_FAIL ? code : 0;
}

struct faulty {
	struct rh_drive base;
	struct rh_drive *inner;
	struct rh_drive_request shadow; /* carried out instead of the one that goes wrong */
	struct rh_drive_request *original;
	enum rh_drive_fault fault;
};

static struct faulty *faulty_of(struct rh_drive *drive)
{
	return (struct faulty *)drive;
}

/* A read's bit is flipped after it; a write's bit before it, and flipped back afterwards. */
static void flip(const struct rh_drive_request *request)
{
	((char *)request->memory)[request->bytes / 3] ^= 4;
}

static void shadow_done(struct rh_drive_request *shadow)
{
	struct faulty *faulty = shadow->context;
	struct rh_drive_request *original = faulty->original;
	if (faulty->fault == RH_FAULT_FLIP)
		flip(original);
	original->rc = shadow->rc;
	original->done(original);
}

static void faulty_submit(struct rh_drive *drive, struct rh_drive_request *request)
{
	struct faulty *faulty = faulty_of(drive);
	int code = 0;
	if (!is_due(request->kind == RH_DRIVE_WRITE, &faulty->fault, &code)) {
		faulty->inner->ops->submit(faulty->inner, request);
		return;
	}
	switch (faulty->fault) {
	case RH_FAULT_FAIL:
		request->rc = code;
		request->done(request);
		break;
	case RH_FAULT_SHORT:
		request->first_bytes = (request->bytes / 2 + SECTOR - 1) / SECTOR * SECTOR;
		faulty->inner->ops->submit(faulty->inner, request);
		break;
	case RH_FAULT_TORN:
	case RH_FAULT_FLIP:
		faulty->original = request;
		faulty->shadow = *request;
		faulty->shadow.done = shadow_done;
		faulty->shadow.context = faulty;
		if (faulty->fault == RH_FAULT_TORN)
			faulty->shadow.bytes /= 2;
		else if (request->kind == RH_DRIVE_WRITE)
			flip(request);
		faulty->inner->ops->submit(faulty->inner, &faulty->shadow);
		break;
	case RH_FAULT_STALL:
		break;
	case RH_FAULT_DELAY:
		request->delay_ms = code;
		faulty->inner->ops->submit(faulty->inner, request);
		break;
	}
}

static void faulty_attach(struct rh_drive *drive, void *memory, int64_t bytes)
{
	struct rh_drive *inner = faulty_of(drive)->inner;
	inner->ops->attach(inner, memory, bytes);
}

static void faulty_close(struct rh_drive *drive, double seconds)
{
	struct faulty *faulty = faulty_of(drive);
	faulty->inner->ops->close(faulty->inner, seconds);
	rh_free(faulty);
}

static const struct rh_drive_ops ops = {"faulty", faulty_submit, faulty_attach, faulty_close};

int drive_fault_open(struct rh_drive *inner, struct rh_drive **out)
{
	struct faulty *faulty = rh_alloc(1, sizeof *faulty);
	if (!faulty)
		return -ENOMEM;
	faulty->base.ops = &ops;
	faulty->inner = inner;
	*out = &faulty->base;
	return 0;
}
