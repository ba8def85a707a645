/* What a machine is, as /proc and /sys tell it: nothing here measures, and nothing fails. What is not told is -1, 0 or empty. */
#ifndef RH_MACHINE_FACTS_H
#define RH_MACHINE_FACTS_H

#include <stdint.h>

enum { DOCTOR_GPUS_MOST = 16, DOCTOR_DRIVES_MOST = 32 };

/* A PCIe link as negotiated, and the most that the card and what it is plugged into could have. */
struct doctor_pcie {
	char address[16];                  /* "0000:01:00.0" */
	double speed, card_speed;          /* GT/s */
	int lanes, card_lanes, slot_lanes; /* slot: of the port above; 0: not told */
	double slot_speed;
	int node; /* NUMA */
};

struct doctor_gpu {
	char name[80];
	struct doctor_pcie link;
};

struct doctor_drive {
	char name[32], model[80]; /* "nvme0n1" */
	int64_t bytes;
	int spins;
	struct doctor_pcie link; /* of an NVMe drive */
};

/* More than 20 members: one a fact that `doctor` prints. */
struct doctor_facts {
	char processor[128], isa[16];
	int cores;                 /* that this process may run on */
	int packages, nodes;       /* sockets, NUMA nodes */
	double core_quota;         /* of a control group; 0: none */
	double load;               /* runnable threads of all programs, the last minute's mean */
	char governor[24];         /* of the first core's frequency */
	char frequency_driver[24]; /* who heeds it */

	int64_t ram_bytes, available_bytes, free_bytes; /* free: available within the control group's limit too */
	int64_t group_limit_bytes;                      /* -1: none */
	int64_t swap_used_bytes;
	int64_t locked_bytes; /* most that may be registered; -1: no limit */
	int locks_freely;     /* CAP_IPC_LOCK: the limit does not count */
	int64_t hugepage_bytes, hugepages, hugepages_free;
	char transparent[16]; /* "always", "madvise", "never" */
	int overcommit;       /* vm.overcommit_memory */
	int io_uring_disabled;

	char nvidia_driver[32]; /* "550.54.14" */
	int is_wsl;             /* GPUs are reached through Windows: /dev/dxg */
	int gpus, drives;
	struct doctor_gpu gpu[DOCTOR_GPUS_MOST];
	struct doctor_drive drive[DOCTOR_DRIVES_MOST];
};

/* `root` "" for this machine; tests make up /proc and /sys under another. Cores, instruction set, sockets and NUMA nodes are always this
 * machine's. */
void rh_doctor_look(const char *root, struct doctor_facts *out);
/* Whether GPUs are reached through Windows (WSL 2). */
int rh_doctor_is_wsl(const char *root);
/* NVIDIA's cards alone, with a driver or without. */
int rh_doctor_cards(const char *root);

/* Bytes per second that a link carries one way, packets' headers not counted; 0: not told. */
double doctor_pcie_bytes_per_s(double speed, int lanes);

#endif
