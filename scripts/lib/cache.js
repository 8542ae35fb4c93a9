'use strict';

// Where everything lives that is fetched once per machine (n8n, Node, engine packages). It lies outside
// the work tree, so that `git clean` and a second clone do not pay for it again.

const os = require('node:os');
const path = require('node:path');

/**
 * The cache folder: `$REDIS_LOCK_CACHE`, else `$XDG_CACHE_HOME/n8n-nodes-redis-lock`, else
 * `~/.cache/n8n-nodes-redis-lock`. It need not exist yet.
 *
 * @returns {string} an absolute path
 */
function cacheFolder() {
  const { REDIS_LOCK_CACHE: own, XDG_CACHE_HOME: xdg } = process.env;
  if (own) return path.resolve(own);
  return path.join(xdg ? path.resolve(xdg) : path.join(os.homedir(), '.cache'), 'n8n-nodes-redis-lock');
}

module.exports = { cacheFolder };
