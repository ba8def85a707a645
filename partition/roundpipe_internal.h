/* Inside RoundPipe's partitioner: a request with its memo of bytes and times, which both searches share. */
#ifndef RH_PARTITION_ROUNDPIPE_INTERNAL_H
#define RH_PARTITION_ROUNDPIPE_INTERNAL_H

#include "partition/roundpipe.h"

enum { KEPT = 8 }; /* partitions that the lockstep search hands to the recurrence */

/* The state of one request. */
struct searching {
	const struct rh_partition_request *request;
	struct rh_cost_sums sums;
	double *below_s; /* (layers + 1) prefix sums of request->sum_s; NULL: 0 */
	int layers, first_trained;
	int64_t *bytes[RH_PASSES], *upload[RH_PASSES]; /* (layers, layers + 1), -1: not asked yet */
	double *time;                                  /* ascending, distinct: candidate times of the slowest stage */
	int64_t *limit;                                /* ascending, distinct: candidate sizes of the largest upload */
	int64_t times, limits;
	/* limits of the present packing */
	double slowest_s;
	int64_t upload_limit, bytes_limit;
};

/* Call searching_remember after it where bytes will be asked for. */
int searching_open(const struct rh_partition_request *request, struct searching *at) RH_MUST;
int searching_remember(struct searching *at) RH_MUST;
void searching_close(struct searching *at);
int64_t searching_bytes(struct searching *at, enum rh_pass pass, int lo, int hi);
int64_t searching_upload(struct searching *at, enum rh_pass pass, int lo, int hi);
/* 1: the stages fit the cap together. Sets prefetch_bytes, device_bytes, slowest_s and lockstep_s. */
int searching_measure(struct searching *at, struct rh_partition *partition);

/* The same with exact bytes, where the request has a sizer. */
int searching_fits(struct searching *at, struct rh_partition *partition);

int partition_create(int layers, struct rh_partition *out) RH_MUST;
void partition_copy(struct rh_partition *to, const struct rh_partition *from);

/* Up to KEPT partitions, least lockstep_s first. The caller frees each. RH_DOES_NOT_FIT where nothing fits. */
int lockstep_search(struct searching *at, struct rh_partition kept[KEPT], int *count) RH_MUST;

#endif
