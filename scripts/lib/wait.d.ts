/** Polls until `probe` gives something truthy (what it throws counts as "not yet"); throws at the limit. See wait.js. */
export function until<T>(
  what: string,
  probe: () => T | Promise<T>,
  options?: { timeoutMs?: number; everyMs?: number },
): Promise<NonNullable<T>>;

export class GiveUp extends Error {}
