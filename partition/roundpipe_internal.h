/* Inside RoundPipe's partitioner: a request with its memo of bytes and times, and what its searches share. */
#ifndef RH_PARTITION_ROUNDPIPE_INTERNAL_H
#define RH_PARTITION_ROUNDPIPE_INTERNAL_H

#include "partition/roundpipe.h"

enum { KEPT = 8 }; /* partitions that lockstep hands on to the recurrence */

/* A request while it is being worked on. */
struct searching {
	const struct rh_partition_request *request;
	struct rh_cost_sums sums;
	double *below_s; /* (layers + 1) of request->sum_s, what the layers below take; NULL: nothing */
	int layers, first_trained;
	int64_t *bytes[RH_PASSES], *upload[RH_PASSES]; /* (layers, layers + 1), -1: not asked yet */
	double *time;                                  /* ascending, different: what a slowest stage can take */
	int64_t *limit;                                /* ascending, different: what a largest upload can be */
	int64_t times, limits;
	/* in force for one packing */
	double slowest_s;
	int64_t upload_limit, bytes_limit;
};

/* To be followed by searching_remember where bytes are asked for. */
int searching_open(const struct rh_partition_request *request, struct searching *at) RH_MUST;
int searching_remember(struct searching *at) RH_MUST;
void searching_close(struct searching *at);
int64_t searching_bytes(struct searching *at, enum rh_pass pass, int lo, int hi);
int64_t searching_upload(struct searching *at, enum rh_pass pass, int lo, int hi);
/* Do the stages fit the cap together? Sets prefetch_bytes, device_bytes, slowest_s and lockstep_s. */
int searching_measure(struct searching *at, struct rh_partition *partition);

/* The same by the request's sizer, where it has one: the bytes that a plan of these stages takes. */
int searching_fits(struct searching *at, struct rh_partition *partition);

int partition_create(int layers, struct rh_partition *out) RH_MUST;
void partition_copy(struct rh_partition *to, const struct rh_partition *from);

/* Up to KEPT partitions, least lockstep_s first; each is the caller's. RH_DOES_NOT_FIT where nothing fits. */
int lockstep_search(struct searching *at, struct rh_partition kept[KEPT], int *count) RH_MUST;

#endif
