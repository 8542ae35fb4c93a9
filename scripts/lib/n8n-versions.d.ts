import type { N8nInstall } from './n8n-server';

/** Makes sure that one n8n is installed in the cache. */
export function ensureN8n(version: string): Promise<N8nInstall>;

export function compatVersions(): string[];

export const MAIN_VERSION: string;
