/* `roundhouse doctor`: what the measurement found, for people or as JSON, and saved as a hardware profile. */
#include "machine/doctor.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"

#include <stdio.h>
#include <string.h>

static const double gib = 1 << 30;

/* ---- for programs ---- */

static json_t *link_json(const struct doctor_pcie *link)
{
	return json_pack("{s:s, s:f, s:f, s:f, s:i, s:i, s:i, s:i}", "address", link->address, "gt_per_s", link->speed, "card_gt_per_s",
	                 link->card_speed, "slot_gt_per_s", link->slot_speed, "lanes", link->lanes, "card_lanes", link->card_lanes,
	                 "slot_lanes", link->slot_lanes, "numa_node", link->node);
}

/* In a form that jansson takes: what a file of /sys holds may be anything. */
static json_t *text_json(const char *text)
{
	json_t *json = json_string(text);
	return json ? json : json_string("?");
}

static json_t *gpus_json(const struct doctor_facts *facts)
{
	json_t *list = json_array();
	for (int i = 0; i < facts->gpus; i++)
		json_array_append_new(
		        list, json_pack("{s:o, s:o}", "name", text_json(facts->gpu[i].name), "pcie", link_json(&facts->gpu[i].link)));
	return list;
}

static json_t *drives_json(const struct doctor_facts *facts)
{
	json_t *list = json_array();
	for (int i = 0; i < facts->drives; i++) {
		const struct doctor_drive *drive = &facts->drive[i];
		json_array_append_new(list, json_pack("{s:o, s:o, s:I, s:b, s:o}", "name", text_json(drive->name), "model",
		                                      text_json(drive->model), "bytes", (json_int_t)drive->bytes, "spins", drive->spins,
		                                      "pcie", *drive->link.address ? link_json(&drive->link) : json_null()));
	}
	return list;
}

static json_t *machine_json(const struct doctor_facts *f)
{
	return json_pack("{s:o, s:i, s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:b, s:o, s:o}", "processor",
	                 text_json(f->processor), "cores", f->cores, "sockets", f->packages, "numa_nodes", f->nodes, "isa", f->isa,
	                 "ram_bytes", (json_int_t)f->ram_bytes, "available_bytes", (json_int_t)f->available_bytes, "free_bytes",
	                 (json_int_t)f->free_bytes, "group_limit_bytes", (json_int_t)f->group_limit_bytes, "locked_bytes",
	                 (json_int_t)(f->locks_freely ? -1 : f->locked_bytes), "hugepages_free", (json_int_t)f->hugepages_free,
	                 "transparent_hugepages", f->transparent, "nvidia_driver", f->nvidia_driver, "wsl", f->is_wsl, "gpus", gpus_json(f),
	                 "drives", drives_json(f));
}

static json_t *advices_json(const struct doctor_advices *advices)
{
	json_t *list = json_array();
	for (int i = 0; i < advices->count; i++)
		json_array_append_new(list, json_pack("{s:s, s:o, s:o}", "about", advices->item[i].about, "what",
		                                      text_json(advices->item[i].finding), "mend", text_json(advices->item[i].mend)));
	return list;
}

static json_t *products_json(const struct rh_hardware_device *device)
{
	json_t *list = json_array();
	for (size_t i = 0; i < device->gemms; i++) {
		const struct rh_hardware_gemm *gemm = &device->gemm[i];
		json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I, s:f}", "product", rh_product_name(gemm->product), "m",
		                                      (json_int_t)gemm->m, "n", (json_int_t)gemm->n, "k", (json_int_t)gemm->k,
		                                      "flops_per_s", gemm->fraction * device->peak[gemm->product]));
	}
	return list;
}

static json_t *gpu_json(const struct rh_doctor_report *r)
{
	if (!r->gpu.major)
		return json_null();
	return json_pack("{s:i, s:i, s:s, s:I, s:I}", "compute_capability", r->gpu.major * 10 + r->gpu.minor, "multiprocessors",
	                 r->gpu.multiprocessors, "address", r->gpu.address, "memory_bytes", (json_int_t)r->device_bytes, "reserved_bytes",
	                 (json_int_t)r->device_reserved_bytes);
}

static int print_json(const struct rh_doctor_report *r, const struct rh_hardware *h, const char *profile)
{
	const struct doctor_copies *copies = &r->measured.copies;
	const struct doctor_drive_rates *drive = &r->measured.drive;
	json_t *measured = json_pack("{s:o, s:o, s:s, s:i, s:f, s:f, s:f, s:{s:f, s:f, s:f, s:f, s:f, s:I, s:I}, s:{s:f, s:f, s:f}, "
	                             "s:{s:f, s:f, s:f, s:f}, s:{s:f, s:f, "
	                             "s:f, "
	                             "s:s, s:o}}",
	                             "products", products_json(&h->device), "gpu", gpu_json(r), "device", r->measured.kind, "devices",
	                             r->devices, "f32_flops_per_s", h->device.peak[RH_PRODUCT_F32], "bf16_flops_per_s",
	                             h->device.peak[RH_PRODUCT_BF16], "launch_s", r->launch_s, "copies", "up_bytes_per_s", copies->up,
	                             "down_bytes_per_s", copies->down, "both_bytes_per_s", copies->both, "all_up_bytes_per_s",
	                             copies->all_up, "latency_s", copies->latency_s, "registered_bytes", (json_int_t)copies->registered,
	                             "asked_bytes", (json_int_t)copies->tried, "memory", "read_bytes_per_s", r->host.read,
	                             "copy_bytes_per_s", r->host.copy, "one_core_copy_bytes_per_s", r->host.core_copy, "optimizer",
	                             "split_bytes_per_s", r->optimizer[RH_LAYOUT_SPLIT], "plain_bytes_per_s", r->optimizer[RH_LAYOUT_PLAIN],
	                             "split8_bytes_per_s", r->optimizer[RH_LAYOUT_SPLIT8], "float32_bytes_per_s", r->optimizer_f32, "drive",
	                             "read_bytes_per_s", drive->read, "write_bytes_per_s", drive->write, "mixed_bytes_per_s", drive->mixed,
	                             "name", drive->name, "trouble", *r->drive_trouble ? text_json(r->drive_trouble) : json_null());
	return verb_print_json(json_pack("{s:o, s:o, s:o, s:o, s:f}", "machine", machine_json(&r->facts), "measured", measured, "warnings",
	                                 advices_json(&r->advices), "profile", profile ? text_json(profile) : json_null(), "seconds",
	                                 r->seconds));
}

/* ---- for people ---- */

static void print_link(const char *what, const struct doctor_pcie *link)
{
	printf("  %-36s %s", what, link->address);
	if (link->lanes > 0)
		printf(", %d PCIe lanes of %d, %.0f GT/s of %.0f", link->lanes, link->card_lanes, link->speed, link->card_speed);
	if (link->node >= 0)
		printf(", by NUMA node %d", link->node);
	printf("\n");
}

static void print_machine(const struct doctor_facts *f)
{
	printf("%s: %d core%s, %d socket%s, %d NUMA node%s, %s\n", f->processor, f->cores, f->cores == 1 ? "" : "s", f->packages,
	       f->packages == 1 ? "" : "s", f->nodes, f->nodes == 1 ? "" : "s", f->isa);
	printf("memory: %.1f GiB, %.1f free\n", (double)f->ram_bytes / gib, (double)f->free_bytes / gib);
	for (int i = 0; i < f->gpus; i++)
		print_link(f->gpu[i].name, &f->gpu[i].link);
	for (int i = 0; i < f->drives; i++)
		if (*f->drive[i].link.address)
			print_link(*f->drive[i].model ? f->drive[i].model : f->drive[i].name, &f->drive[i].link);
}

/* The shapes that were measured in both widths, a few of them: by rows, then by columns. */
static void print_products(const struct rh_hardware_device *device)
{
	enum { SHOWN = 8 };
	const struct rh_hardware_gemm *pair[2][SHOWN];
	int64_t pairs = 0, kept = 0;
	for (int pass = 0; pass < 2; pass++) {
		int64_t seen = 0;
		for (size_t i = 0; i < device->gemms; i++)
			for (size_t k = i + 1; k < device->gemms; k++) {
				const struct rh_hardware_gemm *a = &device->gemm[i], *b = &device->gemm[k];
				if (a->product == b->product || a->m != b->m || a->n != b->n || a->k != b->k)
					continue;
				if (pass && seen * SHOWN / pairs >= kept && kept < SHOWN) { /* evenly spread */
					pair[0][kept] = a;
					pair[1][kept++] = b;
				}
				seen++;
			}
		pairs = seen;
		if (!pairs)
			return;
	}
	printf("  products of %8s x %5s x %5s, GFLOP/s: %8s %9s\n", "m", "n", "k", rh_product_name(pair[0][0]->product),
	       rh_product_name(pair[1][0]->product));
	for (int64_t i = 0; i < kept; i++)
		printf("              %8lld x %5lld x %5lld           %8.1f %9.1f\n", (long long)pair[0][i]->m, (long long)pair[0][i]->n,
		       (long long)pair[0][i]->k, pair[0][i]->fraction * device->peak[pair[0][i]->product] / 1e9,
		       pair[1][i]->fraction * device->peak[pair[1][i]->product] / 1e9);
}

static void print_measured(const struct rh_doctor_report *r, const struct rh_hardware *h)
{
	const struct doctor_copies *copies = &r->measured.copies;
	printf("%d %s device%s: products up to %.1f GFLOP/s in fp32, %.1f in bf16\n", r->devices, r->measured.kind,
	       r->devices == 1 ? "" : "s", h->device.peak[RH_PRODUCT_F32] / 1e9, h->device.peak[RH_PRODUCT_BF16] / 1e9);
	if (r->gpu.major)
		printf("  sm_%d%d, %d multiprocessors, %.1f GiB, %.1f of them not to be had\n", r->gpu.major, r->gpu.minor,
		       r->gpu.multiprocessors, (double)r->device_bytes / gib, (double)r->device_reserved_bytes / gib);
	if (r->one_core > 0)
		printf("  one core alone: %.0f %% of all %d; two halves, each by itself: %.0f %%\n", r->one_core * 100, r->facts.cores,
		       r->halves * 100);
	print_products(&h->device);
	printf("  copies: %.1f GB/s up, %.1f down, %.1f both at once", copies->up / 1e9, copies->down / 1e9, copies->both / 1e9);
	if (r->devices > 1)
		printf("; all devices up %.1f", copies->all_up / 1e9);
	printf("; %.1f us each at least\n", copies->latency_s * 1e6);
	printf("host memory: %.1f GB/s read, %.1f read and written, %.1f by one core\n", r->host.read / 1e9, r->host.copy / 1e9,
	       r->host.core_copy / 1e9);
	printf("AdamW: %.1f GB/s split, %.1f plain, %.1f split8, %.1f float32\n", r->optimizer[RH_LAYOUT_SPLIT] / 1e9,
	       r->optimizer[RH_LAYOUT_PLAIN] / 1e9, r->optimizer[RH_LAYOUT_SPLIT8] / 1e9, r->optimizer_f32 / 1e9);
	if (*r->drive_trouble)
		printf("drive: not measured: %s\n", r->drive_trouble);
	else
		printf("drive%s%s: %.2f GB/s read, %.2f written, %.2f both at once\n", *r->measured.drive.name ? " " : "",
		       r->measured.drive.name, r->measured.drive.read / 1e9, r->measured.drive.write / 1e9, r->measured.drive.mixed / 1e9);
}

static void print_text(const struct rh_doctor_report *r, const struct rh_hardware *h, const char *profile)
{
	print_machine(&r->facts);
	print_measured(r, h);
	for (int i = 0; i < r->advices.count; i++)
		printf("! %s\n    mend: %s\n", r->advices.item[i].finding, r->advices.item[i].mend);
	if (!r->advices.count)
		printf("nothing is wrong that could be seen\n");
	if (profile)
		printf("saved as %s\n", profile);
}

/* Where `save` means: a path where it has a slash or ends in .yaml, else a name among the user's own profiles. A fresh string. */
static char *profile_path(const char *save)
{
	size_t length = strlen(save);
	if (strchr(save, '/') || (length > 5 && !strcmp(save + length - 5, ".yaml")))
		return rh_strdup(save);
	struct rh_text path = {0};
	char *dir = rh_hardware_user_dir();
	int rc = dir ? rh_dir_make(dir) : rh_fail(-ENOENT, "save: there is no home directory for '%s'; give the path of a file", save);
	if (!rc)
		rc = rh_text_printf(&path, "%s/%s.yaml", dir, save);
	char *copy = rc ? NULL : rh_strdup(path.bytes);
	rh_text_free(&path);
	rh_free(dir);
	return copy;
}

static int save_profile(const struct rh_hardware *hardware, const char *path)
{
	struct rh_text text = {0};
	int rc = rh_text_printf(&text, "# " RH_MARK " doctor measured this machine.\n");
	if (!rc)
		rc = rh_hardware_print(hardware, &text);
	if (!rc)
		rc = rh_file_write_whole(path, text.bytes, text.length);
	rh_text_free(&text);
	return rc;
}

int verb_doctor(const struct rh_config *config)
{
	char here_text[] = ".", *here = here_text;
	struct rh_doctor_options options = {
	        .device = config->device, .dir = &here, .dirs = 1, .probes_seconds = (double)config->measure_seconds};
	if (config->nvme_dirs.count) {
		options.dir = config->nvme_dirs.item;
		options.dirs = (int)config->nvme_dirs.count;
	}
	struct rh_doctor_report report;
	struct rh_hardware hardware = {0};
	char *path = config->save ? profile_path(config->save) : NULL;
	if (config->save && !path)
		return -ENOENT;
	int rc = path ? verb_check_output(config, "save", path, OUTPUT_PROFILE) : 0;
	if (!rc)
		rc = rh_doctor_examine(&options, &report);
	if (rc)
		goto out;
	rc = rh_doctor_profile(&report, &hardware);
	if (!rc && path)
		rc = save_profile(&hardware, path);
	if (!rc && config->json)
		rc = print_json(&report, &hardware, path);
	else if (!rc)
		print_text(&report, &hardware, path);
	rh_hardware_free(&hardware);
	rh_doctor_free(&report);
out:
	rh_free(path);
	return rc;
}
