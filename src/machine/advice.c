#include "machine/advice.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const double gib = 1 << 30;

/* `finding` and `mend` of the next advice; NULL where there is room for no more. */
static struct doctor_advice *next(struct doctor_advices *out, const char *about)
{
	if (out->count == DOCTOR_ADVICE_MOST)
		return NULL;
	struct doctor_advice *advice = &out->item[out->count++];
	advice->about = about;
	*advice->finding = *advice->mend = 0;
	return advice;
}

static void say(char *to, size_t bytes, const char *format, ...) RH_PRINTF(3, 4);
static void say(char *to, size_t bytes, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(to, bytes, format, args);
	va_end(args);
}

#define ADVISE(out, about, finding_args, mend_args)                                                                                        \
	do {                                                                                                                               \
		struct doctor_advice *advice = next(out, about);                                                                           \
		if (advice) {                                                                                                              \
			SAY(advice->finding, finding_args);                                                                                \
			SAY(advice->mend, mend_args);                                                                                      \
		}                                                                                                                          \
	} while (0)
#define PARTS(...)     __VA_ARGS__
#define SAY(to, parts) say(to, sizeof(to), PARTS parts)

static void advise_memory(const struct doctor_facts *f, struct doctor_advices *out)
{
	double ram = (double)f->ram_bytes / gib, available = (double)f->available_bytes / gib;
	if (f->group_limit_bytes >= 0 && f->ram_bytes > 0 && (double)f->group_limit_bytes < 0.9 * (double)f->ram_bytes)
		ADVISE(out, "cgroup",
		       ("this process may have %.1f GiB of the machine's %.1f: its control group is limited",
		        (double)f->group_limit_bytes / gib, ram),
		       ("start the container with a higher --memory, or: sudo systemctl set-property --runtime "
		        "$(basename $(cut -d: -f3 /proc/self/cgroup)) MemoryMax=infinity"));
	if (f->ram_bytes > 0 && f->available_bytes >= 0 && (f->available_bytes < f->ram_bytes / 2 || f->available_bytes < (int64_t)4 << 30))
		ADVISE(out, "memory", ("%.1f GiB of %.1f are free: weights and optimizer state live in host memory", available, ram),
		       ("see who has it: ps -eo rss,pid,comm --sort=-rss | head"));
	if (f->swap_used_bytes > (int64_t)64 << 20)
		ADVISE(out, "swap", ("%.1f GiB of memory are swapped out, and come back slowly", (double)f->swap_used_bytes / gib),
		       ("sudo swapoff -a && sudo swapon -a"));
	if (f->overcommit == 2)
		ADVISE(out, "overcommit", ("vm.overcommit_memory is 2: large mappings may be refused with memory free"),
		       ("sudo sysctl vm.overcommit_memory=0"));
	int64_t most = f->ram_bytes / 2;
	if (f->locked_bytes >= 0 && !f->locks_freely && f->locked_bytes < most)
		ADVISE(out, "memlock",
		       ("only %.1f MiB of memory may be locked: buffers cannot be registered for the drive",
		        (double)f->locked_bytes / 1048576),
		       ("echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/roundhouse.conf, then log in again (a "
		        "container: --ulimit memlock=-1)"));
	if (!strcmp(f->transparent, "never") && !f->hugepages_free)
		ADVISE(out, "hugepages", ("hugepages are off: large copies and the optimizer walk through many more page entries"),
		       ("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"));
}

static void advise_cores(const struct doctor_facts *f, struct doctor_advices *out)
{
	if (f->core_quota > 0 && f->core_quota < f->cores)
		ADVISE(out, "cpu-quota", ("the control group may use %.1f of %d cores", f->core_quota, f->cores),
		       ("start the container with a higher --cpus, or without it"));
	if (f->load > 0.5 * f->cores)
		ADVISE(out, "load", ("%.1f programs were running on %d cores: what was measured here is too low", f->load, f->cores),
		       ("stop them (top shows who), and measure again"));
	int own = !strncmp(f->frequency_driver, "intel_pstate", 12) ||
	          !strncmp(f->frequency_driver, "amd-pstate-epp", 14); /* there it is fast */
	if (!strcmp(f->governor, "powersave") && !own)
		ADVISE(out, "governor", ("the cores stay at their lowest frequency (governor powersave)"),
		       ("sudo cpupower frequency-set -g performance"));
	if (f->io_uring_disabled)
		ADVISE(out, "io_uring",
		       ("the kernel refuses io_uring%s: the drive is read by threads, more slowly",
		        f->io_uring_disabled == 1 ? " to ordinary users" : ""),
		       ("sudo sysctl kernel.io_uring_disabled=0"));
}

/* A card at rest runs its link slowly, so the speed negotiated is no complaint, the number of lanes is. */
static void advise_lanes(const char *what, const struct doctor_pcie *link, struct doctor_advices *out)
{
	if (link->lanes <= 0 || link->card_lanes <= 0 || link->lanes >= link->card_lanes)
		return;
	int slot = link->slot_lanes > 0 && link->slot_lanes < link->card_lanes;
	ADVISE(out, "pcie-lanes",
	       ("%s at %s uses %d PCIe lanes of the %d it has%s", what, link->address, link->lanes, link->card_lanes,
	        slot ? ": its slot has no more" : ""),
	       (slot ? "move it to a slot with %d lanes (sudo lspci -vv -s %s shows LnkCap and LnkSta)"
	             : "reseat it, and look for a slot that shares its %d lanes in the BIOS (sudo lspci -vv -s %s shows LnkCap and LnkSta)",
	        link->card_lanes, link->address));
}

static void advise_gpus(const struct doctor_facts *f, const struct doctor_measured *m, struct doctor_advices *out)
{
	if (f->gpus && !*f->nvidia_driver)
		ADVISE(out, "driver", ("%d NVIDIA GPU%s found, but no driver is loaded", f->gpus, f->gpus == 1 ? "" : "s"),
		       ("sudo apt install nvidia-driver, then restart (Ubuntu: sudo ubuntu-drivers install)"));
	if (f->gpus && *f->nvidia_driver && !m->build)
		ADVISE(out, "build", ("there is a GPU, but this program was built without CUDA"),
		       ("install the CUDA toolkit, then: make clean && make CUDA=1"));
	for (int i = 0; i < f->gpus; i++)
		advise_lanes(f->gpu[i].name, &f->gpu[i].link, out);
	if (!m->kind || strcmp(m->kind, "cuda"))
		return;
	if (m->copies.tried > 0 && m->copies.registered < m->copies.tried)
		ADVISE(out, "registered",
		       ("only %.1f of %.1f GiB of host memory could be registered with the GPU", (double)m->copies.registered / gib,
		        (double)m->copies.tried / gib),
		       ("end other runs on the GPU; a virtual machine may need more memory (WSL2: memory= in .wslconfig, then wsl "
		        "--shutdown)"));
	if (f->is_wsl)
		ADVISE(out, "wsl",
		       ("the GPU is reached through Windows (WSL 2): what does not fit its memory may lie in host memory without an error, "
		        "little "
		        "host memory can be registered, and launches are sent in batches"),
		       ("leave max_vram 1 GiB below what Windows' task manager shows as free, or boot Linux itself for speed"));
	if (m->has_time_limit)
		ADVISE(out, "display",
		       ("the GPU drives a display, whose driver ends kernels that take seconds, as attention over very long rows can"),
		       ("train on a GPU without a display (--device cuda:N), or end the desktop: sudo systemctl isolate "
		        "multi-user.target"));
	int which = 0;
	while (m->address && which < f->gpus - 1 && strcmp(m->address, f->gpu[which].link.address))
		which++;
	const struct doctor_pcie *link = &f->gpu[which].link;
	double speed = link->slot_speed > 0 && link->slot_speed < link->card_speed ? link->slot_speed : link->card_speed;
	double could = doctor_pcie_bytes_per_s(speed, link->lanes);
	if (f->gpus && could > 0 && m->copies.up > 0 && m->copies.up < 0.6 * could)
		ADVISE(out, "pcie-speed",
		       ("copies to the GPU reach %.1f GB/s of the %.1f that %d lanes of %.0f GT/s carry", m->copies.up / 1e9, could / 1e9,
		        link->lanes, speed),
		       ("nvidia-smi -q -d PERFORMANCE,CLOCK; in the BIOS set the slot's generation to that of the card; sudo lspci -vv -s "
		        "%s",
		        link->address));
}

static void advise_drive(const struct doctor_facts *f, const struct doctor_measured *m, struct doctor_advices *out)
{
	const struct doctor_drive_rates *rates = &m->drive;
	for (int i = 0; i < f->drives; i++)
		if (!strncmp(f->drive[i].name, "nvme", 4))
			advise_lanes(*f->drive[i].model ? f->drive[i].model : f->drive[i].name, &f->drive[i].link, out);
	if (!(rates->read > 0))
		return;
	int spins = 0;
	for (int i = 0; i < f->drives; i++)
		spins |= f->drive[i].spins && !strcmp(f->drive[i].name, rates->name);
	if (spins || rates->read < 1.5e9 || rates->write < 0.75e9)
		ADVISE(out, "drive",
		       ("the drive%s%s reads %.2f and writes %.2f GB/s%s: too slow to hold optimizer state", *rates->name ? " " : "",
		        rates->name, rates->read / 1e9, rates->write / 1e9, spins ? " (it spins)" : ""),
		       ("name a directory on an NVMe drive: --nvme_dirs DIR (lsblk -d -o NAME,MODEL,TRAN,SIZE shows them)"));
}

void rh_doctor_advise(const struct doctor_facts *facts, const struct doctor_measured *measured, struct doctor_advices *out)
{
	out->count = 0;
	advise_memory(facts, out);
	advise_cores(facts, out);
	advise_gpus(facts, measured, out);
	advise_drive(facts, measured, out);
}
