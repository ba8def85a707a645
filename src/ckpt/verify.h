/* Checksums of files: SHA-256 of what is written, and of a base model's files against what is recorded of them. */
#ifndef RH_CKPT_VERIFY_H
#define RH_CKPT_VERIFY_H

#include "core/error.h"

#define RH_SUMS_NAME "SHA256SUMS"

/* Writes dir/SHA256SUMS, which `sha256sum -c` reads, under a line that says who wrote it: sums
 * of the model's, adapter's and tokenizer's files in it. */
int rh_verify_write_sums(const char *dir) RH_MUST;

/* Each file of a model, a directory or one file, against the sum that is recorded of it: the name of its blob in the hub's cache, the
 * etag in .cache/huggingface/download, a line of SHA256SUMS beside it, the name of its object in a clone with git-lfs, or the checksum
 * in the header of a safetensors file of this program. The number of files that match is told. -EINVAL: one does not match, is a
 * git-lfs pointer in place of the file, or no sum is recorded of any weights. */
int rh_verify_base(const char *path) RH_MUST;

#endif
