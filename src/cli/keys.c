/* roundhouse keys: who this box is to those it is linked with. */
#include "cli/verbs.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "link/identity.h"

#include <stdio.h>

/* A key that is there stays: other boxes know it. */
int verb_keys(const struct rh_config *config)
{
	const char *path = config->link_identity;
	char hash[RH_IDENTITY_HASH];
	int rc = rh_identity_make(path);
	if (rc && rc != -EEXIST)
		return rc;
	int is_new = !rc;
	if (!is_new && !rh_file_exists(path))
		return rh_fail(-EINVAL, "link_identity: %s is no regular file; name another", path);
	rc = rh_identity_hash(path, hash);
	if (rc)
		return rc;
	if (config->json)
		return verb_print_json(json_pack("{s:s, s:s}", "link_identity", path, "certificate_hash", hash));
	rh_note("%s: %s; keep it on this box", path, is_new ? "a new key" : "this box's key");
	printf("%s\n", hash);
	rh_note("The boxes beside this one name this hash as link_peer_above or link_peer_below.");
	return 0;
}
