/** Installs a locked set of packages once per machine; see install.js. Returns the folder that contains `node_modules`. */
export function ensureInstalled(
  lockFolder: string,
  options?: { label?: string; rebuild?: string[]; nodeHome?: string },
): Promise<string>;

/** Makes a folder exactly once per machine; see install.js. Returns `target`. */
export function once(target: string, make: (partial: string) => Promise<void>): Promise<string>;
