/* How much of the whole host's speed a part of its cores has, alone and beside another part. */
#ifndef RH_MACHINE_CORES_H
#define RH_MACHINE_CORES_H

#include "machine/ops.h"

enum { DOCTOR_CORES_MOST = 64, DOCTOR_CORES_PARTS = 3 };

struct doctor_cores {
	const struct doctor_probe *probe;
	struct doctor_place part[DOCTOR_CORES_PARTS]; /* one core; half of them; the other half */
	struct doctor_samples samples[DOCTOR_CORES_PARTS];
	double one[DOCTOR_CORES_MOST], halves[DOCTOR_CORES_MOST];
	int count;
};

/* Devices of parts of the host's cores, two at least. doctor_cores_close also after a fault. */
int doctor_cores_open(const struct doctor_probe *probe, int cores, struct doctor_cores *out) RH_MUST;
/* One pass after another: on all cores (whole, which counts as a pass of the probe like any other), on one, on both halves at once. */
int doctor_cores_measure(struct doctor_cores *cores, const struct doctor_place *whole, struct doctor_samples *samples) RH_MUST;
/* The medians. *one_core: the share of all cores' speed that one has alone; 0: nothing was measured, or it is no slower. *halves: what the
 * two reach together, 1 being the whole. Sorts. */
void doctor_cores_reduce(struct doctor_cores *cores, double *one_core, double *halves);
void doctor_cores_close(struct doctor_cores *cores);

#endif
