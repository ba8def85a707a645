/* Finds what is wrong with a machine, and the command that mends it. */
#ifndef RH_MACHINE_ADVICE_H
#define RH_MACHINE_ADVICE_H

#include "machine/copies.h"
#include "machine/drive.h"
#include "machine/facts.h"

enum { DOCTOR_ADVICE_MOST = 64 };

struct doctor_advice {
	const char *about; /* a word for programs: "memlock", "pcie", ... */
	char finding[256], mend[256];
};
struct doctor_advices {
	struct doctor_advice item[DOCTOR_ADVICE_MOST];
	int count;
};

/* Measurements beside the facts; zeros where nothing was measured. */
struct doctor_measured {
	const char *build;   /* "cuda", "emu", or NULL: this program has no CUDA */
	const char *kind;    /* of the devices that copied: "cpu", "cuda"; NULL: none did */
	const char *address; /* of the GPU that did, as facts name it; NULL: not known, so the first */
	int has_time_limit;  /* that GPU drives a display, so the driver ends kernels that take seconds */
	struct doctor_copies copies;
	struct doctor_drive_rates drive;
};

void rh_doctor_advise(const struct doctor_facts *facts, const struct doctor_measured *measured, struct doctor_advices *out);

#endif
