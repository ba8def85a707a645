/* MPI's calls within one process. As with MPI a small message is over when it is sent, a large one when its receive is there; each tag
 * has its order. Called by one thread at a time. */
#ifndef RH_TESTS_LINK_MPI_STAND_IN_H
#define RH_TESTS_LINK_MPI_STAND_IN_H

#include "check.h"

#include "link/mpi_calls.h"

#include <string.h>

enum { STAND_IN_POSTED = 256, STAND_IN_SMALL = 64 };

static struct stand_in {
	enum { STAND_IN_FREE, STAND_IN_SEND, STAND_IN_RECEIVE, STAND_IN_OVER } state;
	uint64_t number;
	int tag;
	char *bytes;
	int64_t size;
	char copy[STAND_IN_SMALL];
} stand_in[STAND_IN_POSTED];
static uint64_t stand_in_posted;

static int stand_in_start(int *rank, int *ranks, char error[RH_MPI_LINE])
{
	(void)error;
	*rank = 0;
	*ranks = 1;
	return 0;
}

/* A request that is over is NULL. */
static void stand_in_name(struct rh_mpi_request *out, struct stand_in *at)
{
	memcpy(out->handle, &at, sizeof at);
}

static int stand_in_post(unsigned state, void *bytes, int64_t size, int tag, struct rh_mpi_request *out)
{
	struct stand_in *place = NULL, *other = NULL;
	for (struct stand_in *at = stand_in; at < stand_in + STAND_IN_POSTED; at++) {
		int fits = at->tag == tag && at->state == (state == STAND_IN_SEND ? STAND_IN_RECEIVE : STAND_IN_SEND);
		if (fits && (!other || at->number < other->number))
			other = at;
		if (at->state == STAND_IN_FREE)
			place = at;
	}
	assert_non_null(place);
	stand_in_name(out, NULL);
	if (other) {
		assert_int_equal(other->size, size);
		memcpy(state == STAND_IN_SEND ? other->bytes : bytes, state == STAND_IN_SEND ? bytes : other->bytes, (size_t)size);
		other->state = other->bytes == other->copy ? STAND_IN_FREE : STAND_IN_OVER;
		return 0;
	}
	*place = (struct stand_in){.state = state, .number = stand_in_posted++, .tag = tag, .bytes = bytes, .size = size};
	if (state == STAND_IN_SEND && size <= STAND_IN_SMALL)
		place->bytes = memcpy(place->copy, bytes, (size_t)size);
	else
		stand_in_name(out, place);
	return 0;
}

static int stand_in_send(const void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out, char error[RH_MPI_LINE])
{
	(void)rank, (void)error;
	return stand_in_post(STAND_IN_SEND, (void *)(uintptr_t)bytes, size, tag, out);
}

static int stand_in_receive(void *bytes, int64_t size, int rank, int tag, struct rh_mpi_request *out, char error[RH_MPI_LINE])
{
	(void)rank, (void)error;
	return stand_in_post(STAND_IN_RECEIVE, bytes, size, tag, out);
}

static int stand_in_test(struct rh_mpi_request *request, char error[RH_MPI_LINE])
{
	struct stand_in *at;
	(void)error;
	memcpy(&at, request->handle, sizeof at);
	if (!at)
		return 1;
	if (at->state != STAND_IN_OVER)
		return 0;
	at->state = STAND_IN_FREE;
	return 1;
}

static void stand_in_cancel(struct rh_mpi_request *request)
{
	struct stand_in *at;
	memcpy(&at, request->handle, sizeof at);
	if (at)
		at->state = STAND_IN_FREE;
}

static const struct rh_mpi_calls stand_in_calls = {.version = RH_MPI_CALLS_VERSION,
                                                   .start = stand_in_start,
                                                   .send = stand_in_send,
                                                   .receive = stand_in_receive,
                                                   .test = stand_in_test,
                                                   .cancel = stand_in_cancel};

#endif
