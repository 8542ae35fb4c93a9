/** `npm run bench`: sees to it that there is something to measure with, and something to measure. */
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import dependencies from '../scripts/lib/dependencies.js';
import npmOf from '../scripts/lib/npm.js';
import processes from '../scripts/lib/processes.js';
import progress from '../scripts/lib/progress.js';

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = dirname(HERE);

/** Whether this folder's packages are there, in the versions of the lock file. */
function isInstalled() {
  const read = (...parts) => JSON.parse(readFileSync(join(HERE, ...parts), 'utf8')).packages;
  if (!existsSync(join(HERE, 'node_modules', '.package-lock.json'))) return false;
  const present = read('node_modules', '.package-lock.json');
  return Object.entries(read('package-lock.json')).every(
    ([name, { version }]) => !name || present[name]?.version === version,
  );
}

/** Whether `dist` was built after the last change of the engine: the figures must be those of the source. */
function isBuilt() {
  const built = join(ROOT, 'dist', 'engine', 'index.js');
  if (!existsSync(built)) return false;
  const since = statSync(built).mtimeMs;
  const sources = readdirSync(join(ROOT, 'engine'), { recursive: true, withFileTypes: true });
  return sources.every(
    (entry) => entry.isDirectory() || statSync(join(entry.parentPath ?? entry.path, entry.name)).mtimeMs <= since,
  );
}

processes.superviseProcesses();
await dependencies.ensureDependencies();
if (!isInstalled()) {
  await progress.withProgress('Installing the packages of the benchmark', () =>
    npmOf.npm(['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'], { cwd: HERE }),
  );
}
if (!isBuilt()) await progress.withProgress('Building the package', () => dependencies.build({ quiet: true }));
await import('./run.mjs');
