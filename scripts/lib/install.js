'use strict';

// Installs a locked set of packages once per machine, into the cache folder.
//
// The work is done in a folder of this process alone, which is renamed to its final name when it is complete.
// So a folder with the final name is always whole: a process killed half way, or two processes at once,
// cannot leave one that is not.

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const { cacheFolder } = require('./cache');
const { npm } = require('./npm');
const { withProgress } = require('./progress');
const { until } = require('./wait');

const MANIFESTS = ['package.json', 'package-lock.json'];
const WAIT_FOR_OTHER_MS = 30 * 60_000;

/**
 * Makes sure that what a `package.json` and `package-lock.json` ask for is installed in the cache.
 *
 * @param {string} lockFolder folder that holds the two files
 * @param {object} [options]
 * @param {string} [options.label] what is being installed, for the progress line and the folder's name
 * @param {string[]} [options.rebuild] packages whose native code is compiled afterwards; no other install script runs
 * @param {string} [options.nodeHome] the Node to install with (folder with `bin/node`); default: the one on the path
 * @returns {Promise<string>} the folder that contains `node_modules`
 * @throws {Error} when npm fails, with the end of its output
 */
async function ensureInstalled(lockFolder, { label, rebuild = [], nodeHome } = {}) {
  const name = label ?? lockFolder.split(path.sep).slice(-2).join(' ');
  const manifests = MANIFESTS.map((file) => [file, fs.readFileSync(path.join(lockFolder, file))]);
  const target = path.join(cacheFolder(), folderName(name, manifests, rebuild, nodeHome));

  return await once(target, async (partial) => {
    for (const [file, content] of manifests) fs.writeFileSync(path.join(partial, file), content);
    await withProgress(`Installing ${name} into ${target}`, async () => {
      await npm(['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error'], {
        cwd: partial,
        nodeHome,
      });
      if (rebuild.length > 0) {
        await npm(['rebuild', ...rebuild, '--ignore-scripts=false', '--loglevel=error'], { cwd: partial, nodeHome });
      }
    });
  });
}

/**
 * Makes a folder exactly once per machine: returns at once where it exists, waits for another process that is
 * already making it, and otherwise has `make` fill it.
 *
 * @param {string} target the folder's final name
 * @param {(partial: string) => Promise<void>} make fills the folder that it is given, which gets its final name afterwards
 * @returns {Promise<string>} `target`
 */
async function once(target, make) {
  if (fs.existsSync(target)) return target;
  fs.mkdirSync(path.dirname(target), { recursive: true });

  await until(`another process to finish ${target}`, () => fs.existsSync(target) || livingMakers(target).length === 0, {
    timeoutMs: WAIT_FOR_OTHER_MS,
    everyMs: 500,
  });
  if (fs.existsSync(target)) return target;

  const partial = `${target}.partial-${process.pid}`;
  fs.rmSync(partial, { recursive: true, force: true });
  fs.mkdirSync(partial);
  try {
    await make(partial);
    fs.renameSync(partial, target);
  } catch (error) {
    fs.rmSync(partial, { recursive: true, force: true });
    // Two processes that began in the same instant: the other one's result is as good.
    if (!fs.existsSync(target)) throw error;
  }
  return target;
}

/** Pids of other processes that are filling a partial folder of this target; folders of dead ones are wiped. */
function livingMakers(target) {
  const prefix = `${path.basename(target)}.partial-`;
  const folder = path.dirname(target);
  return fs
    .readdirSync(folder)
    .filter((name) => name.startsWith(prefix))
    .map((name) => Number(name.slice(prefix.length)))
    .filter((pid) => {
      if (pid !== process.pid && isAlive(pid)) return true;
      fs.rmSync(path.join(folder, `${prefix}${pid}`), { recursive: true, force: true });
      return false;
    });
}

function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

function folderName(name, manifests, rebuild, nodeHome) {
  const hash = createHash('sha256');
  for (const [file, content] of manifests) hash.update(file).update(content);
  // Compiled code belongs to the Node that it was compiled for.
  if (rebuild.length > 0)
    hash.update(JSON.stringify([rebuild, nodeHome ? path.relative(cacheFolder(), nodeHome) : process.version]));
  return `${name.replace(/[^\w.-]+/g, '-')}-${hash.digest('hex').slice(0, 12)}`;
}

module.exports = { ensureInstalled, once };
