/* What a run may put on NVMe: keys `spill` and `nvme_dirs`. */
#ifndef RH_CONFIG_SPILL_H
#define RH_CONFIG_SPILL_H

enum rh_spill {
	RH_SPILL_OPTIMIZER = 1,   /* moments */
	RH_SPILL_MASTERS = 2,     /* of split and plain layouts: the part of the master that the upload form does not hold */
	RH_SPILL_WEIGHTS = 4,     /* frozen weights */
	RH_SPILL_ACTIVATIONS = 8, /* between stages: saved stage inputs and boundary gradients */
	RH_SPILL_AUTO = 16        /* no other bit is set: the kinds that cost least, where max_ram is short (plan/choose_spill.c) */
};
enum { RH_SPILL_KINDS = 4 };

#endif
